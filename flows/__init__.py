"""Prefect flows around the pipeline: a run as a flow, its iterations as flows, its stages as tasks."""
