"""Groups of settings that can be off."""

from __future__ import annotations

from typing import Any


def switch(value: Any) -> Any:
    """`off` (YAML's false) and `on` (true, the defaults) stand for a whole group of settings."""
    if value is False:
        return None
    return {} if value is True else value
