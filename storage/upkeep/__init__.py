"""Maintenance of a store: verification, retention and garbage collection."""
