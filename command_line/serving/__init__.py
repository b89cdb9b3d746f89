"""Commands about a policy that serves: serving it, learning from its traffic, aliases, forgetting users."""
