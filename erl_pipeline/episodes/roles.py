"""Roles of trajectories that mean the same in every method."""

from __future__ import annotations

JUDGE = "judge"
"""What a judge said of a finished attempt (`erl_pipeline.episodes.judge`)."""

NEVER_TRAINED = frozenset({JUDGE})
"""Their trajectories are stored and read by people. No update, group or dataset takes them, since nothing
says how good they are."""
