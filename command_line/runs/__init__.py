"""`erl-pipeline runs`: lists the runs of a store, shows one, removes one."""
