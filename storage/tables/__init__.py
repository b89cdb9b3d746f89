"""Parquet tables with a schema: trajectories, supervised rows, training records and scores."""
