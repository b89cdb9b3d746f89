"""`erl-pipeline train`: the command, and what it says before it works."""
