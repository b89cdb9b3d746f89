"""How a model is asked to make experience of finished episodes, and how its answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from erl_pipeline.environments.messages import Message

OperationName = Literal["add", "update", "return"]


@dataclass(frozen=True)
class ExperienceOperation:
    """What is to be done with the experience.

    `add`: `text` is new. `update`: `text` replaces some of the lessons that the episode had; `lessons` has
    their places, from 0. `return`: everything stays as it is.
    """

    operation: OperationName
    text: str = ""
    lessons: tuple[int, ...] = ()


@dataclass(frozen=True)
class EpisodeRecord:
    """A finished attempt, as it was stored.

    `opening` is what the policy was told before it first spoke, including the `lessons`; `turns` is all that
    follows, the policy's words and the environment's.
    """

    opening: Sequence[Message]
    turns: Sequence[Message]
    lessons: Sequence[str]
    feedback: str
    reward: float


class ExperienceFormat(Protocol):
    """Prompts of a model that extracts experience."""

    def situation(self, record: EpisodeRecord) -> str:
        """The task as the policy was told it, without the lessons."""
        ...

    def extraction(self, record: EpisodeRecord) -> list[Message]:
        """Asks for operations on the experience. The attempt is shown without the lessons that were put into
        its opening; they are listed apart."""
        ...

    def read_extraction(self, text: str, lessons: int) -> Sequence[ExperienceOperation] | None:
        """The operations in an answer on an episode with this many lessons; None where it is ill-formed."""
        ...

    def merging(self, texts: Sequence[str]) -> list[Message]:
        """Asks which of these texts to keep, to merge and to discard."""
        ...

    def read_merging(self, text: str) -> Sequence[str] | None:
        """The texts that replace those shown, empty where all of them stay; None for an ill-formed answer."""
        ...
