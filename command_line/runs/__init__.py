"""`erl-pipeline runs`: what runs a store has, one of them, and removing one."""
