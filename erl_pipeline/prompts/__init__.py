"""The messages of every role: attempt, reflection, retry."""
