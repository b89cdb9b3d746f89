"""The policies that are trained: a tiny one with its own cold start, or any pretrained causal LM."""

import storage.lean_imports  # noqa: F401 - before any module here imports a model class
