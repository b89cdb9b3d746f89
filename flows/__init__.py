"""Prefect around the pipeline: the runner that shows stages as task runs, scheduled flows, deployments."""
