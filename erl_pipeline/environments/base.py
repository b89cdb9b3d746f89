"""The interface of every environment, and the task that it is opened on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Task:
    """One problem instance.

    `task_type` is the kind that memory is filtered by, such as `frozen_lake-4x4`. `payload` is JSON and
    holds all that opens the environment; nothing of it reaches a prompt but through the environment.
    """

    task_id: str
    task_type: str
    environment: str
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Transition:
    """What one turn led to. `valid` is False where the policy's text held no action that could be done."""

    observation: str
    reward: float
    done: bool
    valid: bool


@dataclass(frozen=True)
class AttemptReport:
    """A finished attempt as a reflection prompt shows it; all of it is text that is true of the attempt."""

    observation: str
    trace: str
    feedback: str
    reward: float


class TextEnvironment(Protocol):
    """The state of one attempt."""

    @property
    def instructions(self) -> str:
        """What the policy is told before the first observation, the same for all attempts; may be empty."""
        ...

    def reset(self) -> str:
        """Begin the attempt; returns the first observation."""
        ...

    def step(self, text: str) -> Transition:
        """Do what the policy's text of one turn says. Any text is allowed; a bad one is invalid, no error."""
        ...

    def feedback(self) -> str:
        """Outcome and counts of the finished attempt."""
        ...

    def trace(self) -> str:
        """The turns of the attempt so far, for a reflection prompt."""
        ...
