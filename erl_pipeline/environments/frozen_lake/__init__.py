"""FrozenLake without slipping, with symbols and action words that need not give their meaning away."""
