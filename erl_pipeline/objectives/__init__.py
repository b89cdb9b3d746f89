"""What is optimised: advantages, clipped surrogate, importance weights, KL and the mean over tokens."""
