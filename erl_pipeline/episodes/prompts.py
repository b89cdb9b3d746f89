"""What a prompt format must give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from erl_pipeline.environments.base import AttemptReport

Message = dict[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`"""


class PromptFormat(Protocol):
    """Prompts of the three roles. Only the arguments reach a prompt."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        """The opening of an attempt.

        Without notes it is the first attempt's prompt, which evaluation and distillation use too. With
        `notes` (reflections on earlier attempts at this task, the latest last) it is a later attempt's.
        """
        ...

    def retry(self, instructions: str, report: AttemptReport) -> list[Message]:
        """The opening of a second attempt that follows the feedback alone, without a reflection."""
        ...

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        """Asks for a reflection on a finished attempt. `memory`: retrieved reflections, the best first."""
        ...

    def read_reflection(self, text: str) -> str | None:
        """The reflection in the policy's answer; None when it is ill-formed, and then it is never used."""
        ...
