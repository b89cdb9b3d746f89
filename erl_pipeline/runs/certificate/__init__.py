"""Certificates: copies of a run are trained, killed many times, and compared with the run."""
