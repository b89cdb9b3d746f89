"""Reflection memory: entries in artifacts, and a LanceDB table, built from them, for search."""
