"""Multi-turn environments: what the policy says in; messages, reward and true feedback out."""
