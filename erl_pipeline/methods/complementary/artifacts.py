"""Names that the method's artifacts have: of their files, and of the inputs by which stages get them."""

from __future__ import annotations

CALLS_FILE = "extractor_calls.parquet"
CREDITS_FILE = "credits.parquet"
SCORES_FILE = "scores.parquet"
SCORER_FILE = "scorer.safetensors"

CALLS = "calls"
"""What the extractor was asked and wrote in an iteration."""
CREDIT = "credits"
"""The newest credits, and with them the chain of those before."""
MERGED = "merged"
"""A memory version that a merge has written since the credits before, with the extractor's answers."""
SCORES = "scores"
"""The newest scores of the variant `weights`, and with them the chain of those before."""
