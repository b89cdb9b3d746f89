"""Configurations as a person reads them: the meaning of each setting, and what differs between two."""
