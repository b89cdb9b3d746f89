"""Simulating a plan on nodes that are not at hand: when each stage would begin and end, and what moves."""
