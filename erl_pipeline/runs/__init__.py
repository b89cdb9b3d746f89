"""Runs: their plans, the driver that executes them and writes their records, and operations on stored
runs."""
