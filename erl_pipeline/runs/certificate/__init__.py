"""Certificates: a copy of a run is trained, killed again and again, and compared with the run."""
