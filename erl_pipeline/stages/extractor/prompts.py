"""Prose prompts of an extractor and of attempts with its lessons, for language models and any environment."""

import json
import re
from collections.abc import Sequence
from typing import Any

from erl_pipeline.config.experience import ExperienceTemplates
from erl_pipeline.config.prompts import render
from erl_pipeline.environments.messages import Message, opening, without_thoughts, words_of
from erl_pipeline.environments.prompt_format import EpisodeRecord, ExperienceOperation

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ExperiencePrompts:
    """Prompts made of the templates: attempts with and without lessons, extraction, merging."""

    def __init__(self, templates: ExperienceTemplates, max_operations: int = 1) -> None:
        self._templates = templates
        self._max_operations = max_operations

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        """The opening of an attempt; `notes` are lessons, the best last."""
        return opening(instructions + (self._lessons(notes) if notes else ""), observation)

    def situation(self, record: EpisodeRecord) -> str:
        return record.opening[-1]["content"]

    def extraction(self, record: EpisodeRecord) -> list[Message]:
        values = {
            "instructions": self._instructions(record),
            "observation": record.opening[-1]["content"],
            "turns": [{**turn, "content": words_of(without_thoughts(turn))} for turn in record.turns],
            "feedback": record.feedback,
            "reward": record.reward,
            "lessons": list(record.lessons),
        }
        asked = render(self._templates.extraction_system, {"max_operations": self._max_operations})
        return opening(asked, render(self._templates.extraction, values))

    def read_extraction(self, text: str, lessons: int) -> Sequence[ExperienceOperation] | None:
        """The operations in the JSON of the last `<answer>`; None where it is ill-formed."""
        found = _answered(text)
        listed = [found] if isinstance(found, dict) else found
        if not isinstance(listed, list) or not listed:
            return None
        operations = [_operation(each, lessons) for each in listed]
        return None if None in operations else [each for each in operations if each is not None]

    def merging(self, texts: Sequence[str]) -> list[Message]:
        return opening(
            self._templates.merging_system, render(self._templates.merging, {"texts": list(texts)})
        )

    def read_merging(self, text: str) -> Sequence[str] | None:
        found = _answered(text)
        if not isinstance(found, list) or any(not _is_text(each) for each in found):
            return None
        return [each.strip() for each in found]

    def _lessons(self, lessons: Sequence[str]) -> str:
        return render(self._templates.lessons, {"lessons": list(lessons)})

    def _instructions(self, record: EpisodeRecord) -> str:
        """The system message without the lessons. Raises ValueError where it does not end with them."""
        told = record.opening[0]["content"] if len(record.opening) > 1 else ""
        if not record.lessons:
            return told
        block = self._lessons(record.lessons)
        if not told.endswith(block):
            raise ValueError(
                "the opening of an episode does not end with its lessons as method.prompts.lessons has them"
            )
        return told.removesuffix(block)


def _answered(text: str) -> Any:
    """The JSON value of the last answer; None where there is none."""
    answers = _ANSWER.findall(text)
    if not answers:
        return None
    try:
        return json.loads(answers[-1])
    except (ValueError, RecursionError):
        return None


def _operation(value: Any, lessons: int) -> ExperienceOperation | None:
    if not isinstance(value, dict):
        return None
    name, said = value.get("operation"), value.get("text")
    if name == "return":
        return ExperienceOperation("return")
    if not isinstance(said, str) or not _is_text(said):
        return None
    text = said.strip()
    if name == "add":
        return ExperienceOperation("add", text)
    named = value.get("lessons", [1])
    if name != "update" or not isinstance(named, list) or not named:
        return None
    if any(type(each) is not int or not 1 <= each <= lessons for each in named):
        return None
    return ExperienceOperation("update", text, tuple(sorted({each - 1 for each in named})))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and any(character.isalpha() for character in value)
