"""Runs: their plans, the driver that executes them and writes their records, and what is done with stored
ones."""
