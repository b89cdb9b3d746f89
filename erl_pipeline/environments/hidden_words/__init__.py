"""What games with four hidden action words share in their form for the tiny policy: notes of four slots."""
