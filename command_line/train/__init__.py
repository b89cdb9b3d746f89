"""`erl-pipeline train`: the command, and its messages before training."""
