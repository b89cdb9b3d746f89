"""What games with four hidden action words share in their format for the tiny policy: notes of four slots."""
