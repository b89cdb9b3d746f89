"""Traces from elsewhere: conversations in telemetry or logs of other programs, as data to learn from."""
