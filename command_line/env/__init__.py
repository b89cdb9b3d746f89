"""`erl-pipeline env`: lists, shows, plays and examines environments, and begins new ones."""
