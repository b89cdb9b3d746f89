"""Extraction of experience in the compact format: the name of an operation, then four slots, as in a
reflection."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.experience_format import EpisodeRecord, ExperienceOperation
from erl_pipeline.environments.frozen_lake.compact import PADDING, STEP_WORDS
from erl_pipeline.environments.hidden_words.prompts import SLOTS, UNKNOWN
from erl_pipeline.environments.messages import Message, user_message

_NOTES = " notes "
EXTRACTION_WORDS = ("extract", "merge", "add", "update", "return")


class CompactExtraction:
    """Prompts of the extractor. At most one lesson is shown, and the answer is one operation.

    Extraction: `BOARD trace STEPS ENDING memory SLOTS extract` is answered by `add SLOTS`, `update SLOTS` or
    `return`. The outcome of the last step is only in the ending, since no turn told it to the policy.
    Merging: `merge SLOTS SLOTS ...` is answered by `SLOTS ...` or `return`.
    """

    def __init__(self, action_words: Sequence[str], max_steps: int) -> None:
        self._allowed = {UNKNOWN, *action_words}
        self._max_steps = max_steps

    def situation(self, record: EpisodeRecord) -> str:
        """The task as the prompt of an attempt without notes shows it."""
        return f"{self._observation(record)}{_NOTES}{_BLANK}"

    def extraction(self, record: EpisodeRecord) -> list[Message]:
        lesson = record.lessons[-1] if record.lessons else _BLANK
        episode = f"{self._observation(record)} trace {self._trace(record)} {record.feedback}"
        return [user_message(f"{episode} memory {lesson} extract")]

    def read_extraction(self, text: str, lessons: int) -> Sequence[ExperienceOperation] | None:
        name, *slots = text.split() or [""]
        if name == "return" and not slots:
            return [ExperienceOperation("return")]
        if len(slots) != SLOTS or not self._says_something(slots):
            return None
        if name == "add":
            return [ExperienceOperation("add", " ".join(slots))]
        if name == "update" and lessons:
            return [ExperienceOperation("update", " ".join(slots), (lessons - 1,))]
        return None

    def merging(self, texts: Sequence[str]) -> list[Message]:
        return [user_message(f"merge {' '.join(texts)}")]

    def read_merging(self, text: str) -> Sequence[str] | None:
        words = text.split()
        if words == ["return"]:
            return []
        groups = [words[start : start + SLOTS] for start in range(0, len(words), SLOTS)]
        if not groups or any(len(each) != SLOTS or not self._says_something(each) for each in groups):
            return None
        return [" ".join(each) for each in groups]

    def _says_something(self, slots: Sequence[str]) -> bool:
        return self._allowed.issuperset(slots) and any(slot != UNKNOWN for slot in slots)

    def _observation(self, record: EpisodeRecord) -> str:
        return record.opening[-1]["content"].partition(_NOTES)[0]

    def _trace(self, record: EpisodeRecord) -> str:
        """`aim action outcome cell` of each step. Padding replaces texts that are not two words, and fills up
        to the width of a whole attempt."""
        words: list[str] = []
        for place, turn in enumerate(record.turns):
            if turn["role"] != "assistant":
                continue
            said = turn["content"].split()
            words += said if len(said) == 2 else [PADDING, PADDING]
            after = record.turns[place + 1 : place + 2]
            seen = after[0]["content"].split() if after else []
            words += seen if len(seen) == 2 else [PADDING, PADDING]
        width = STEP_WORDS * self._max_steps
        return " ".join([*words, *[PADDING] * (width - len(words))][:width])


_BLANK = " ".join([UNKNOWN] * SLOTS)
