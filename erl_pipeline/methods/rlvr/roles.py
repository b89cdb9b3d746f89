"""The one role of RLVR's trajectories."""

FIRST_ATTEMPT = "first_attempt"
