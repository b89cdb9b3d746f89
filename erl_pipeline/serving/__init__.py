"""Serving a stored run's checkpoint to clients, so that what it answers becomes experience."""
