"""`erl-pipeline compare`: arms trained side by side, and what their test results say."""
