"""Immutable stage outputs: recipes, manifests, and the store that commits them whole or not at all."""
