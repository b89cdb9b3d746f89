"""The stages that make, look at and train checkpoints."""
