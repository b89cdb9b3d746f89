"""Looking after a store: verification, retention and garbage collection."""
