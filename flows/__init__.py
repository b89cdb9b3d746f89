"""Around the pipeline: runners that show stages as task runs of Prefect, scheduled flows, deployments."""
