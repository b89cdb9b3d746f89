"""Parquet tables with a schema: trajectories and supervised rows."""
