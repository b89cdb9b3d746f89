"""."""

from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.environments.reasoning_gym import library
from erl_pipeline.environments.reasoning_gym.environment import find_answer
from erl_pipeline.environments.reasoning_gym.library import AnswerScore, known_answer, score
from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat

LEGS = {"question": "How many legs have 3 cows?", "answer": "12", "metadata": {}}
COUNTDOWN = {"question": "?", "answer": "2*3", "metadata": {"numbers": [2, 3], "target": 6}}


def test_only_a_score_of_1_is_right() -> None:
    assert score("leg_counting", {}, LEGS, "12") == AnswerScore(1.0)
    # The library's default: the share of the answer that is the right one, "12" in "12 legs".
    partly = score("leg_counting", {}, LEGS, "12 legs")
    assert partly == AnswerScore(2 / 7)
    assert not partly.right
    assert score("leg_counting", {}, LEGS, "13") == AnswerScore(0.0)


def test_an_answer_that_the_scorer_raises_at_is_wrong() -> None:
    entry = {"question": "?", "answer": "2 × 3", "metadata": {}}
    assert score("prime_factorization", {}, entry, "3 × 2").right
    found = score("prime_factorization", {}, entry, "two × three")
    assert found == AnswerScore(0.0, "the scorer could not read it (ValueError)")


@pytest.mark.parametrize("value", [1.5, -0.5, float("nan"), float("inf")])
def test_a_score_that_is_none_is_wrong(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
            return value

    monkeypatch.setattr(library, "scorer", lambda name, config: Odd())
    assert score("leg_counting", {}, LEGS, "12") == AnswerScore(
        0.0, f"the scorer gave {value}, which is not between 0 and 1"
    )


@pytest.mark.parametrize(
    "answer", ["9**9**9**9", "9//2", "__import__('os').getcwd()", "f(2)", "3!", "2*3*" + "9" * 13]
)
def test_expressions_are_evaluated_only_where_they_are_plain_arithmetic(answer: str) -> None:
    assert score("countdown", {}, COUNTDOWN, "(3 * 2)").right
    assert score("countdown", {}, COUNTDOWN, answer) == AnswerScore(
        0.0, "it has signs that no answer to this question needs"
    )


def test_code_never_reaches_a_scorer_that_evaluates_lists() -> None:
    entry = {"question": "?", "answer": "A B", "metadata": {}}
    assert score("spiral_matrix", {}, entry, "[[__import__('os').getcwd()]]").problem is not None
    assert score("spiral_matrix", {}, entry, "[9**9**9**9]").problem is not None


def test_answers_that_would_take_for_ever_are_not_scored() -> None:
    assert score("leg_counting", {}, LEGS, "1" * 10_001).problem == "it is longer than 10000 characters"
    assert score("leg_counting", {}, LEGS, "1e999999999").problem == "it has a number with a huge exponent"


def test_a_cube_is_not_turned_millions_of_times() -> None:
    entry = {"question": "?", "answer": None, "metadata": {"cube_size": 3, "scramble_moves": "R R"}}
    assert score("rubiks_cube", {}, entry, "R' R'").right
    assert score("rubiks_cube", {}, entry, "R2").right
    for answer in ("R44444444", "R 2 R٤٤", "R99 " * 2000):
        found = score("rubiks_cube", {}, entry, answer)
        assert found == AnswerScore(0.0, "it has signs that no answer to this question needs")


def test_the_right_answer_may_stand_in_the_metadata() -> None:
    colours = {"question": "?", "answer": None, "metadata": {"possible_answer": {"0": 1}}}
    assert known_answer("graph_color", colours) == '{"0": 1}'
    assert known_answer("leg_counting", LEGS) == "12"
    assert known_answer("boxnet", {"answer": None, "metadata": {}}) is None


@pytest.mark.parametrize(
    ("answer_format", "text", "answer"),
    [
        ("tag", "I think <answer> 4 </answer>.", "4"),
        ("tag", "<answer>3</answer> no, <answer>4</answer>", "4"),
        ("tag", "in the tags <answer> goes what counts: <answer>1 2\n3 4</answer>", "1 2\n3 4"),
        ("tag", "<answer>4</answer></answer>", "4"),
        ("tag", "</answer><answer>4", None),
        ("tag", "4", None),
        ("tag", "<answer>4", None),
        ("tag", "<answer> </answer>", None),
        ("boxed", r"so \boxed{4}.", "4"),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"{ } } \boxed{3} and \boxed{\boxed{4}}", "4"),
        ("boxed", r"\boxed{3} or \boxed{4", "3"),
        ("boxed", r"\boxed 4", None),
        ("last_line", "2 + 2\n= 4\n 4 \n\n", "4"),
        ("last_line", "\n \n", None),
        ("whole", " 1 2\n3 4\n", "1 2\n3 4"),
        ("whole", "", None),
    ],
)
def test_the_answer_is_what_counts_in_its_form(
    answer_format: AnswerFormat, text: str, answer: str | None
) -> None:
    assert find_answer(answer_format, text) == answer


def test_a_text_of_a_megabyte_is_read_at_once() -> None:
    for text in ("<answer>" * 130_000, r"\boxed{" * 140_000, "{" * 1_000_000, "<answer>" + "4" * 1_000_000):
        assert find_answer("tag", text) is None
        assert find_answer("boxed", text) is None
