"""Reading a configuration: its YAML, its validation, and the messages about its mistakes."""
