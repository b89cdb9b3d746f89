"""Configurations for people: the meaning of each setting, and the differences between two configurations."""
