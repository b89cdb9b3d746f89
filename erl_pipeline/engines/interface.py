"""The one interface behind which every generation engine stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class Interrupted(Exception):
    """The run was asked to stop; what is committed stays, what is in flight is dropped."""


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to sample.

    `temperature` 0 means the most probable token each time. `conversation` names the dialogue this turn
    belongs to: an engine may keep its key-value cache between two turns of one conversation, the second
    of which extends the token ids of the first. `model` names the one that is to answer, where a run has
    several.
    """

    prompt_token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    conversation: str
    model: str = "policy"


@dataclass(frozen=True)
class Generation:
    """The sampled tokens, the end token included when there is one.

    `logprobs` are in nats, one for each token, under the distribution that was sampled from (after
    temperature); for temperature 0 they are those of temperature 1.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length"]


class GenerationEngine(Protocol):
    """Samples from exactly one policy version at a time."""

    @property
    def policy_version(self) -> str:
        """The artifact id of the checkpoint that is served."""
        ...

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer every request, in order. Equal requests in equal batches give equal tokens."""
        ...
