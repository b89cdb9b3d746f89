"""`erl-pipeline evaluate`: on tasks, and on streams of them."""
