"""The stages that play episodes for a score."""
