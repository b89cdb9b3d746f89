"""`erl-pipeline episodes`: reading any episode of any run."""
