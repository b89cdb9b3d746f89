"""Reading a configuration: its YAML, its validation, and what is said of a wrong one."""
