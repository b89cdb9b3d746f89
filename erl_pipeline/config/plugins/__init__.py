"""Plug-ins and their settings: what is installed, and which extras are missing."""
