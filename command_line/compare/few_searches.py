"""Imported first where workers are forked: its own imports take a sixth less time, and workers inherit it."""

from erl_pipeline.garbage import search_seldom

search_seldom()
