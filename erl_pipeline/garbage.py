"""How often Python searches for unreachable cycles of objects."""

import gc


def search_seldom() -> None:
    """Search seldom. By default 700 new objects start a search. That takes a sixth of the time in which a
    process imports torch or Prefect, and sometimes a third of a second in an iteration."""
    gc.set_threshold(50_000, 10, 10)
