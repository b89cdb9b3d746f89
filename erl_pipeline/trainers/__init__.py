"""Trainers: what changes the weights of a policy."""
