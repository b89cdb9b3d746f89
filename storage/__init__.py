"""Artifacts, run ledgers, trajectories, reflection memory and lineage; knows nothing of learning."""
