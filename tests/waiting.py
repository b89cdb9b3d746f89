"""Waiting for something that another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_for(
    what: str, holds: Callable[[], Value], *, patience: float = 240.0, interval: float = 0.05
) -> Value:
    """The first true value of `holds`, which is called every `interval` seconds.

    Raises AssertionError, with `what`, after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while not (value := holds()):
        assert time.monotonic() < deadline, f"{what} did not come within {patience:g} s"
        time.sleep(interval)  # Other processes tell nobody when it holds.
    return value
