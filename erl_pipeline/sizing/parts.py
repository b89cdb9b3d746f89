"""What memory is needed for, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["trainer", "trainer's host", "sampler"]
"""`trainer`: the device that trains. `trainer's host`: host memory beside a GPU. `sampler`: where the engine
computes, which may be the trainer's device too."""


@dataclass(frozen=True)
class Part:
    """Memory for one thing; `reason` is the product that gives `bytes`, with its numbers."""

    place: Place
    name: str
    bytes: int
    reason: str


def count(number: float) -> str:
    """A number of weights or tokens, in short form."""
    for scale, letter in ((1e9, "G"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:.4g} {letter}"
    return f"{number:,.0f}"
