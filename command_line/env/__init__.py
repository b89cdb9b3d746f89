"""`erl-pipeline env`: which environments there are, playing them by hand, and examining them."""
