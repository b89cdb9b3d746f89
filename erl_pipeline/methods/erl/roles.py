"""The roles of ERL's trajectories."""

FIRST_ATTEMPT = "first_attempt"
REFLECTION = "reflection"
SECOND_ATTEMPT = "second_attempt"
"""Also a third or later attempt; `revision_index` tells which."""
