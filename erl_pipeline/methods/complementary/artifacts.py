"""Names of the files in the method's artifacts, and of the stage inputs that these artifacts become."""

from __future__ import annotations

CALLS_FILE = "extractor_calls.parquet"
CREDITS_FILE = "credits.parquet"
SCORES_FILE = "scores.parquet"
SCORER_FILE = "scorer.safetensors"

CALLS = "calls"
"""What the extractor was asked and wrote in an iteration."""
CREDIT = "credits"
"""The newest credits, and through them the chain of earlier ones."""
MERGED = "merged"
"""The memory version that a merge wrote after the previous credits, with the extractor's answers."""
SCORES = "scores"
"""The newest scores of the variant `weights`, and through them the chain of earlier ones."""
