"""Episodes: first attempt, feedback, reflection, second attempt, as token sequences that can be trained."""
