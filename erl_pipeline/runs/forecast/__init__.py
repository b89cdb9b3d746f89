"""What a plan is expected to take: seconds, tokens and bytes, from what earlier runs took or from sizes."""
