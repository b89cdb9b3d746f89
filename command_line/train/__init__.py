"""`erl-pipeline train`."""
