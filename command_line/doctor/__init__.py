"""Checks of what this machine can run: plain functions, whose findings say what to do."""
