"""A small GPT-2 that learns to act, reflect and read notes from scripted demonstrations."""
