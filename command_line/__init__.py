"""The `erl-pipeline` command; one module a group of commands, each importing what it needs only when it runs."""
