"""The stage that fixes a run's tasks."""
