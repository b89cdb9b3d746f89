"""Where two runs part: the first artifact, and in it the first row and token, or tensor, that differs."""
