"""Sampling text from the policy: tokens in, tokens and their log-probabilities out."""
