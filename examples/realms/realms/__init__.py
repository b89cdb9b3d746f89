"""Streamed evaluation: a checkpoint plays streams of tasks in realms that training never shows, with notes
and without."""
