"""Comparing methods: which runs it takes, how far each must go, and what their test results say."""
