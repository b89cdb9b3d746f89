"""What a configuration needs: memory by arithmetic, and all that an update takes, measured on tensors without
memory."""
