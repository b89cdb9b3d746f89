"""The stages that methods share, one module each."""
