"""The gateway: an OpenAI-compatible address that an agent talks to, and the token sequences of its calls."""
