from __future__ import annotations

import pytest

from erl_pipeline.environments.reasoning_gym.answers import find_answer
from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat


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
