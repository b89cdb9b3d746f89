"""Lineage shown in terms of the stages: policies, evaluations, drawings, OpenLineage events."""
