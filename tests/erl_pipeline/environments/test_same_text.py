"""Texts that are the same to a reader have one key; texts that are not have two."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from erl_pipeline.environments.questions.tasks import read_questions
from erl_pipeline.environments.same_text import reading_key
from storage.errors import InputError

QUESTION = "Wie hei\u00dft das Caf\u00e9 in M\u00fcnchen?"
VARIANTS = {
    "decomposed": "Wie hei\u00dft das Cafe\u0301 in Mu\u0308nchen?",
    "a zero-width space": "Wie hei\u00dft das Ca\u200bf\u00e9 in M\u00fcnchen?",
    "a joiner and a mark of direction": "Wie hei\u00dft das Caf\u00e9\u2060 in \u200eM\u00fcnchen?",
    "a soft hyphen": "Wie hei\u00dft das Caf\u00e9 in M\u00fcn\u00adchen?",
    "a full-width mark": "Wie hei\u00dft das Caf\u00e9 in M\u00fcnchen\uff1f",
    "a no-break space": "Wie hei\u00dft das\u00a0Caf\u00e9 in  M\u00fcnchen?",
    "other case": "WIE HEISST DAS CAF\u00c9 IN M\u00dcNCHEN?",
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_is_the_same_question(variant: str, tmp_path: Path) -> None:
    assert reading_key(variant) == reading_key(QUESTION)
    file = tmp_path / "questions.jsonl"
    asked = (QUESTION, variant)
    file.write_text("\n".join(json.dumps({"question": each, "answer": "x"}) for each in asked))
    with pytest.raises(InputError, match="its question is already on line 1"):
        read_questions(file, "lines")


@pytest.mark.parametrize(
    ("one", "other"), [("2\u00b2", "22"), ("x\u2082", "x2"), ("2\u00bd", "21/2"), ("-5", "5")]
)
def test_what_means_something_else_stays_apart(one: str, other: str) -> None:
    assert reading_key(one) != reading_key(other)
