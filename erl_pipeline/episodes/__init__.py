"""Playing episodes: attempts at tasks as token sequences that can be trained, and the loop that runs them."""
