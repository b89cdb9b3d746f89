"""`erl-pipeline plan`, and `train --dry-run`."""
