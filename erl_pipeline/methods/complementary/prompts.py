"""Prose prompts of Complementary RL for language models, for any environment: templates in settings."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationInfo, field_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.prompts import check_template, render
from erl_pipeline.environments.messages import Message, opening
from erl_pipeline.environments.prompt_format import EpisodeRecord, ExperienceOperation

_VARIABLES: Mapping[str, Mapping[str, Any]] = {
    "lessons": {"lessons": ["Open it."]},
    "extraction_system": {"max_operations": 3},
    "extraction": {
        "instructions": "Act.",
        "observation": "A door.",
        "turns": [{"role": "assistant", "content": "open"}],
        "feedback": "It failed.",
        "reward": 0.0,
        "lessons": ["Open it."],
    },
    "merging_system": {},
    "merging": {"texts": ["Open it.", "Open the door."]},
}
"""The variables of each template, with examples."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ExperienceTemplates(Settings):
    """Prompts as Jinja templates."""

    lessons: str = (
        "\n\nLessons from earlier episodes (they may be wrong here):"
        "{% for lesson in lessons %}\n- {{ lesson }}{% endfor %}"
    )
    """Text after the environment's instructions in the system message of a guided attempt. It is removed
    again before the extractor reads the episode. Variables: lessons."""
    extraction_system: str = (
        "You keep a collection of lessons for an agent. You read one of its episodes, which may have "
        "succeeded or failed, and the lessons that it was given for it. Say what should become of the "
        "collection, with at most {{ max_operations }} operations in a JSON list:\n"
        '<answer>[{"operation": "add", "text": "a new lesson"}, '
        '{"operation": "update", "lessons": [1], "text": "what takes the place of lesson 1"}, '
        '{"operation": "return"}]</answer>\n'
        "`return` alone leaves everything as it is. A lesson is general, true of what was seen, short, and "
        "understood without the episode."
    )
    """System message that asks the extractor for experience. Variables: max_operations."""
    extraction: str = (
        "The task was told as follows.\n{% if instructions %}{{ instructions }}\n{% endif %}{{ observation }}"
        "\n\nThe episode:{% for turn in turns %}\n[{{ turn.role }}] {{ turn.content }}{% endfor %}"
        '\n\nReward: {{ "%g" | format(reward) }}\nFeedback: {{ feedback }}'
        "{% if lessons %}\n\nThe lessons that were given:"
        "{% for lesson in lessons %}\n{{ loop.index }}. {{ lesson }}{% endfor %}{% endif %}"
    )
    """User message with the episode. Variables: instructions, observation, turns (each with role and
    content), feedback, reward, lessons."""
    merging_system: str = (
        "You keep a collection of lessons for an agent. You read some of them. Keep what is useful as it is, "
        "make one lesson of those that say the same or belong together, and leave out what is wrong or "
        "useless. Answer with the lessons that remain, as a JSON list of texts:\n"
        '<answer>["a lesson", "another lesson"]</answer>\n'
        "An empty list leaves everything as it is."
    )
    """System message that asks the extractor to merge. Variables: none."""
    merging: str = "{% for text in texts %}{{ loop.index }}. {{ text }}\n{% endfor %}"
    """User message with the lessons. Variables: texts."""

    @field_validator("*")
    @classmethod
    def _can_be_rendered(cls, template: str, info: ValidationInfo) -> str:
        assert info.field_name is not None
        return check_template(info.field_name, template, _VARIABLES[info.field_name])


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
            "turns": list(record.turns),
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
