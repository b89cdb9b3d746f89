"""Prompts: what a format must give, the chat prompts made of templates, and the asking for experience."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from erl_pipeline.config.prompts import PromptTemplates, render
from erl_pipeline.environments.messages import Message, answer_start, opening


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


class PromptFormat(AttemptPrompts, Protocol):
    """Prompts of attempts, and of the reflections between them."""

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        """The opening of a later attempt that is told how the previous attempt failed.

        `report` is of that attempt, with the observation that this one begins with. `notes` as in `attempt`;
        there are none where no reflection was written. For a tiny policy to be given such prompts, its
        demonstrations must have them (`TinyParts.retry_tokens`).
        """

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        """Asks for a reflection on a finished attempt. `memory`: retrieved reflections, the best first."""

    def read_reflection(self, text: str) -> str | None:
        """The reflection in the policy's answer; None when it is ill-formed, and then it is never used."""


class ChatPrompts:
    """Prompts made of the templates."""

    def __init__(self, templates: PromptTemplates) -> None:
        self._templates = templates

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        if not notes:
            return opening(instructions, observation)
        values = {"instructions": instructions, "observation": observation, "notes": list(notes)}
        return opening(render(self._templates.second_attempt, values), observation)

    def retry(self, instructions: str, report: AttemptReport, notes: Sequence[str]) -> list[Message]:
        values = {**report_values(instructions, report), "notes": list(notes)}
        return opening(render(self._templates.retry, values), report.observation)

    def reflection(self, instructions: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        values = {**report_values(instructions, report), "memory": list(memory)}
        return opening(
            render(self._templates.reflection_system, {}), render(self._templates.reflection, values)
        )

    def read_reflection(self, text: str) -> str | None:
        """The whole answer, without thoughts before it; None when it says nothing."""
        stripped = text[answer_start(text) :].strip()
        return stripped if any(character.isalpha() for character in stripped) else None


def report_values(instructions: str, report: AttemptReport) -> dict[str, Any]:
    """The variables of templates about a finished attempt."""
    return {
        "instructions": instructions,
        "observation": report.observation,
        "trace": report.trace,
        "feedback": report.feedback,
        "reward": report.reward,
    }


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

    def extraction(self, record: EpisodeRecord) -> list[Message]:
        """Asks for operations on the experience. The attempt is shown without the lessons that were put into
        its opening; they are listed apart."""

    def read_extraction(self, text: str, lessons: int) -> Sequence[ExperienceOperation] | None:
        """The operations in an answer on an episode with this many lessons; None where it is ill-formed."""

    def merging(self, texts: Sequence[str]) -> list[Message]:
        """Asks which of these texts to keep, to merge and to discard."""

    def read_merging(self, text: str) -> Sequence[str] | None:
        """The texts that replace those shown, empty where all of them stay; None for an ill-formed answer."""
