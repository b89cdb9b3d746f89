"""The stages of an iteration and the order they run in; plain Python, with or without an orchestrator."""
