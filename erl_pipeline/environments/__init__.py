"""Multi-turn text environments: the policy's text in; observation, reward and true feedback out."""
