"""The `erl-pipeline` command; one module a group of commands, importing what it needs when it runs."""
