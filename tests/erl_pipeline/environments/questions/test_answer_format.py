from __future__ import annotations

import time

import pytest

from erl_pipeline.environments.questions.environment import FORMATS, in_box, in_tag, on_last_line
from erl_pipeline.environments.questions.settings import AnswerFormat


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{72}.", "72"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"\boxed {6}", "6"),
        (r"\boxed{}", None),
        (r"\boxed{7", None),
        ("72", None),
    ],
)
def test_the_last_closed_box_counts(text: str, answer: str | None) -> None:
    assert in_box(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer> or <answer>\nb\n</answer>", "b"),
        ("<answer>a</answer> or <answer>b", "a"),
        ("</answer><answer>", None),
        ("<answer> </answer>", None),
    ],
)
def test_the_last_closed_tag_counts(text: str, answer: str | None) -> None:
    assert in_tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("48 + 24 = 72\n72\n\n", "72"),
        ("#### 72", "72"),
        ("**Answer:** 72", "72"),
        ("The final answer is: 72.", "72."),
        ("Answers differ", "Answers differ"),
        (" \n ", None),
    ],
)
def test_the_last_line_counts_without_its_label(text: str, answer: str | None) -> None:
    assert on_last_line(text) == answer


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("piece", ["{", "\\boxed{", "<answer>", "</answer>", "\n", "*", " ", "answer", "a"])
def test_a_megabyte_takes_no_time(name: AnswerFormat, piece: str) -> None:
    began = time.perf_counter()
    FORMATS[name].find(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - began < 3.0
