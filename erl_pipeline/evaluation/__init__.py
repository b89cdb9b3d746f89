"""What an evaluation says about a policy: rates with intervals, differences, areas under learning curves."""
