"""What is optimised: advantages, the clipped surrogate, importance weights, KL and how token losses are averaged."""
