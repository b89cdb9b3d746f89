"""Prefect around the pipeline: runners whose stages are tasks, scheduled flows, deployments."""
