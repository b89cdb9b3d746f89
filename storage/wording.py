"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its word: `1 row`, `1,200 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
