"""FrozenLake's demonstrations for the warm start of a language model, in the short format."""
