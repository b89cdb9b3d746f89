"""ERL: attempt, feedback, reflection, second attempt, distillation (arXiv 2602.13949)."""
