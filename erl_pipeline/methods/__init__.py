"""Methods: how a policy learns. One folder each, found by the `type` of their settings."""
