"""`erl-pipeline memory`."""
