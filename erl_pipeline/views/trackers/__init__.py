"""Trackers, which get the numbers of each stage, so that people can watch a run."""
