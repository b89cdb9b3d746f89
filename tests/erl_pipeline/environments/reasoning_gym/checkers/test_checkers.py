"""All checkers: they find nothing wrong in right answers, and can read any text."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from qualify.reasoning_gym_datasets import hostile_answers

from erl_pipeline.environments.reasoning_gym.checkers import CHECKERS, broken_rules
from erl_pipeline.environments.reasoning_gym.library import known_answer, qualification
from erl_pipeline.environments.reasoning_gym.tasks import EntryRequest, entries_of

ANSWERS = {"possible_answer", "solution", "solutions", "valid_answers", "result", "factors"}
ANSWERS |= {"goal_path", "target_repr"}
ANSWERS |= {"solution_path", "generated_palindrome", "clear_text", "expression", "letter_to_digit", "path"}


def sentences(name: str, metadata: dict[str, object], answers: Iterable[str]) -> list[str]:
    return [sentence for answer in answers for sentence in broken_rules(name, metadata, answer)]


def test_every_checker_is_of_a_dataset_that_qualifies() -> None:
    assert set(CHECKERS) <= qualification().qualified
    assert len(CHECKERS) >= 10


@pytest.mark.parametrize("name", sorted(CHECKERS))
def test_a_right_answer_breaks_no_rule_and_the_right_one_is_not_looked_at(name: str) -> None:
    for entry in entries_of(EntryRequest(name, {}, seed=3, split="training", count=4, third=False)):
        metadata = entry["metadata"]
        answer = known_answer(name, entry)
        assert answer is not None
        assert broken_rules(name, metadata, answer) == []
        asked = {key: value for key, value in metadata.items() if key not in ANSWERS}
        assert json.dumps(asked)
        said = sentences(name, asked, hostile_answers())
        assert said == sentences(name, metadata, hostile_answers())
        assert all(len(sentence) < 600 for sentence in said)
