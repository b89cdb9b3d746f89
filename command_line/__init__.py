"""The `erl-pipeline` command: one module or package for each group of commands, with imports at run time."""
