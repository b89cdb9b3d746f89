"""`erl-pipeline replay`: a run is computed again from a stage of an iteration."""
