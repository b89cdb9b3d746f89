"""Simulating a plan on other nodes: when each stage would begin and end, and which bytes would be moved."""
