"""Prefect around the pipeline: runners that show stages as task runs, scheduled flows, deployments."""
