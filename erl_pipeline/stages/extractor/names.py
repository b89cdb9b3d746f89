"""Names by which the extractor's stages give each other what they made."""

CALLS_FILE = "extractor_calls.parquet"
CREDITS_FILE = "credits.parquet"

CALLS = "calls"
"""What the extractor was asked and wrote in an iteration."""
CREDIT = "credits"
"""The newest credits, and through them the chain of earlier ones."""
MERGED = "merged"
"""The memory version that a merge wrote after the previous credits, with the extractor's answers."""

EXTRACTION = "extraction"
"""What the extractor wrote on an episode."""
MERGE = "merge"
"""What the extractor wrote on entries of the memory."""

FIRST_ATTEMPT = "first_attempt"
"""Role of the attempts that the extractor reads."""
