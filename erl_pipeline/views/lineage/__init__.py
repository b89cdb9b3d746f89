"""Lineage told with the meaning of the stages: policies, evaluations, drawings, OpenLineage events."""
