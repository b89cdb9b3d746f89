"""What games on boards with four hidden action words share; FrozenLake and Sokoban are made of it."""
