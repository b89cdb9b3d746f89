"""What an episode protocol works with, and what it asks for while it runs."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.episodes.rows import EpisodeIdentity, EpisodeLimits
from storage.artifacts.recipe import derive_seed
from storage.tables.trajectories import FREE, GUIDED, Trajectory

if TYPE_CHECKING:
    from erl_pipeline.engines.chat_server import ChatServer
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


_SEEDS = 2**63


def subgroup_of(identity: EpisodeIdentity, withhold: float) -> str | None:
    """`free` where memory is withheld from an episode, else `guided`; None where all episodes see memory.

    Systematic sampling: of any K samples in a row memory is withheld from K * `withhold`, rounded up or down,
    and from each with probability `withhold`. It depends only on (run seed, iteration, task, sample).
    """
    if withhold == 0.0:
        return None
    origin = identity.provenance
    drawn = derive_seed(origin.run_seed, origin.iteration, identity.task.task_id, "withhold") / _SEEDS
    place = drawn + identity.sample_index * withhold
    return FREE if math.floor(place + withhold) > math.floor(place) else GUIDED


@dataclass(frozen=True)
class TurnKey:
    """The place of a conversation in its episode; `phase` as in `SampleRequest`."""

    role: str
    phase: int
    revision: int = 0


@dataclass(frozen=True)
class EpisodeContext:
    """One episode: which it is, its environment, and ways to ask for turns and for memory."""

    identity: EpisodeIdentity
    environment: GuardedEnvironment
    chat: ChatTokenizer
    limits: EpisodeLimits
    ask_policy: Callable[[SampleRequest], Awaitable[Generation]]
    ask_memory: Callable[[RetrievalRequest], Awaitable[list[MemoryHit]]]
    mean_metrics: frozenset[str] = frozenset()
    """Metrics of turns that are averaged over an attempt; all others are summed."""
    withhold: float = 0.0
    """Share of a group's samples that see no memory."""
    chat_server: ChatServer | None = None
    """A model outside the engine that the protocol asks, such as a judge."""

    @property
    def subgroup(self) -> str | None:
        """`guided`, or `free` where this episode is to see no memory; None where all may see it."""
        return subgroup_of(self.identity, self.withhold)

    def room(self, dialogue: Dialogue) -> int:
        """Tokens that the context has left for the next turn."""
        return self.limits.context_length - dialogue.length

    async def sample(self, dialogue: Dialogue, place: TurnKey, turn: int) -> Generation:
        """The policy's next turn in a dialogue; there must be room for it."""
        limits = self.limits.by_role[place.role]
        assert limits.model is not None
        request = GenerationRequest(
            prompt_token_ids=dialogue.token_ids,
            max_new_tokens=min(limits.max_new_tokens, self.room(dialogue)),
            temperature=limits.temperature,
            seed=self.identity.seed(place.role, place.revision, turn),
            conversation=f"{self.identity.episode_id}/{place.role}/{place.revision}",
            model=limits.model,
        )
        return await self.ask_policy(SampleRequest(place.phase, request))

    async def retrieve(self, phase: int, situation: str) -> list[MemoryHit]:
        """Reflections that memory has for a situation."""
        return await self.ask_memory(RetrievalRequest(phase, situation, self.identity.task.task_type))


EpisodeProtocol = Callable[[EpisodeContext], Coroutine[Any, Any, list[Trajectory]]]
"""Plays one episode and returns its trajectories, the first attempt first."""
