"""How the policy is changed: packing, forward and backward passes, the optimizer and the two updates."""

import storage.lean_imports  # noqa: F401 - before any module here imports a model class
