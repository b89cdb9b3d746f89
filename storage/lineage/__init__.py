"""Where things came from and what they reached: artifacts through manifests, rows through columns."""
