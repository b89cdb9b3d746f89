"""What an episode asks for while it runs; a driver answers and the episode goes on."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import IntEnum

from erl_pipeline.engines.interface import Generation, GenerationRequest
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory


class Phase(IntEnum):
    """Where in its episode a request stands; a batched driver finishes the earliest phase first, so that
    batches stay large."""

    FIRST_ATTEMPT = 0
    RETRIEVAL = 1
    REFLECTION = 2
    SECOND_ATTEMPT = 3


@dataclass(frozen=True)
class TurnWanted:
    """One turn of the policy, answered by a `Generation`."""

    phase: Phase
    request: GenerationRequest


@dataclass(frozen=True)
class ReflectionsWanted:
    """Similar reflections from memory, answered by a list of `MemoryHit`."""

    situation: str
    task_type: str
    phase: Phase = Phase.RETRIEVAL


Wanted = TurnWanted | ReflectionsWanted
Answer = Generation | list[MemoryHit]
EpisodeSteps = Generator[Wanted, Answer, list[Trajectory]]
