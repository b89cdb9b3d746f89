"""What an episode asks for while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from erl_pipeline.engines.interface import GenerationRequest

if TYPE_CHECKING:
    from storage.memory.view import MemoryHit


@dataclass(frozen=True)
class SampleRequest:
    """One turn of a policy.

    `phase` says how far the episode is; where episodes go in step, the earliest phase of all is finished
    first, so that batches stay large.
    """

    phase: int
    request: GenerationRequest


@dataclass(frozen=True)
class RetrievalRequest:
    """Reflections from memory on similar situations; `phase` as in `SampleRequest`."""

    phase: int
    situation: str
    task_type: str


Retrieve = Callable[[Sequence[RetrievalRequest]], "list[list[MemoryHit]]"]
"""Answers many retrievals together, in order."""


def nothing_remembered(requests: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
    """The answers of an empty memory."""
    return [[] for _ in requests]
