"""How the policy is changed: packing, forward and backward passes, the optimizer and the two updates."""
