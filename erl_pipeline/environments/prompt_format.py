"""What a prompt format must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from erl_pipeline.environments.messages import Message


@dataclass(frozen=True)
class AttemptReport:
    """A finished attempt as a reflection prompt shows it; all of it is true of the attempt."""

    observation: str
    trace: str
    feedback: str
    reward: float


class AttemptPrompts(Protocol):
    """Prompts of attempts. Only the arguments reach a prompt."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        """The opening of an attempt.

        Without notes it is the first attempt's prompt, which evaluation and distillation use too. With
        `notes` (reflections on earlier attempts at this task, the latest last) it is a later attempt's.
        """
        ...


class PromptFormat(AttemptPrompts, Protocol):
    """Prompts of attempts, and of the reflections between them."""

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        """The opening of a later attempt that is told how the previous attempt failed.

        `report` is of that attempt, with the observation that this one begins with. `notes` as in `attempt`;
        there are none where no reflection was written. For a tiny policy to be given such prompts, its
        demonstrations must have them (`TinyParts.retry_tokens`).
        """
        ...

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        """Asks for a reflection on a finished attempt. `memory`: retrieved reflections, the best first."""
        ...

    def read_reflection(self, text: str) -> str | None:
        """The reflection in the policy's answer; None when it is ill-formed, and then it is never used."""
        ...
