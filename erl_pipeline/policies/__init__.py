"""The policies that are trained: a tiny one with its own cold start, or any pretrained causal LM."""
