"""`erl-pipeline compare`: trains arms side by side and compares their test results."""
