"""`erl-pipeline episodes`."""
