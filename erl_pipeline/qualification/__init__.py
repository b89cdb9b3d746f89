"""Examining an environment before a policy is trained on it."""
