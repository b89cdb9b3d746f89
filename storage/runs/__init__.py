"""Runs of a store: settings, ledger, lock and origin."""
