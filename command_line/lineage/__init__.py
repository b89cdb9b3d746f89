"""`erl-pipeline lineage`."""
