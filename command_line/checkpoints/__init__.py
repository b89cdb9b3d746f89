"""A checkpoint on chosen tasks, and as a folder for other programs."""
