"""The runner `prefect_workers`: stages on the machines of the workers of a Prefect work pool."""
