"""`erl-pipeline evaluate`: evaluation on tasks, or on streams of tasks."""
