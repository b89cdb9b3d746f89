"""`erl-pipeline ui`: a local, read-only page over a store."""
