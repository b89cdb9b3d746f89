"""Reflection memory: entries in artifacts, searched by a LanceDB table that follows from them."""
