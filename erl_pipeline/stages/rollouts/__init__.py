"""The stages that play episodes for training, or bring them in from elsewhere."""
