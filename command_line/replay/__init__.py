"""`erl-pipeline replay`."""
