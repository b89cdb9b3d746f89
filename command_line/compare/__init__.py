"""`erl-pipeline compare`: arms are trained from one start, and compared."""
