"""Scores of the built-in scorers, worked out by hand; and hostile answers, none of which may raise or
hang."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.environments.interface import ScorerFailed
from erl_pipeline.environments.questions.environment import FORMATS
from erl_pipeline.environments.questions.settings import AnswerFormat
from erl_pipeline.environments.questions.tasks import read_questions
from erl_pipeline.environments.scorers import Scored, Scorer, checked_score, scorer_named
from erl_pipeline.environments.scorers.interface import altered_numbers
from erl_pipeline.environments.scorers.numbers import Number, read_number
from erl_pipeline.environments.scorers.symbolic import has_huge_number
from erl_pipeline.environments.scorers.texts import reading_key
from erl_pipeline.qualification.hostile_answers import hostile_answers
from storage.errors import InputError
from tests.erl_pipeline.environments.scorers.scoring import remark, score

BUILT_IN = ("contains", "exact", "f1", "math", "numeric")


@pytest.mark.parametrize(
    ("right", "said", "expected"),
    [
        ("Paris", " paris.", 1.0),
        ("New  York", '"new york"', 1.0),
        ("ﬁve", "FIVE", 1.0),  # a ligature
        ("x+1", "x-1", 0.0),
        ("Paris", "Paris or Rome", 0.0),
        ("Paris", None, 0.0),
        ("Paris", "**Paris**!", 1.0),
        ("café", "cafe\u0301", 1.0),
        ("5", "5.", 1.0),
        ("5", ".5", 0.0),
        ("5", "5!", 0.0),
        ("5", "-5", 0.0),
        ("22", "2²", 0.0),
        ("f", "f'", 0.0),
    ],
)
def test_exact_compares_normalised_texts(right: str, said: str | None, expected: float) -> None:
    assert score("exact", right, said) == expected


def test_contains_wants_the_words_in_a_row() -> None:
    assert score("contains", "New York", "It is New York, I think") == 1.0
    assert score("contains", "New York", "a new city like York") == 0.0
    assert score("contains", "art", "party") == 0.0


@pytest.mark.parametrize(
    ("right", "said", "expected"),
    [
        ("5", "It is 5.", 1.0),
        ("5", "-5", 0.0),
        ("-5", "It is −5.", 1.0),
        ("5", "5.5", 0.0),
        ("5", "1,005", 0.0),
        ("19", "covid-19", 1.0),
        ("5", "5²", 0.0),
        ("5", "5e3", 0.0),
        ("2004", "in 05/11/2004", 1.0),
        ("1918", "1914 –1918", 1.0),
        ("5", "–5", 0.0),
        ("5", "1 2 3 4 5", 1.0),  # docs/environments/questions.md warns of this
    ],
)
def test_contains_takes_numbers_whole(right: str, said: str, expected: float) -> None:
    assert score("contains", right, said) == expected


@pytest.mark.parametrize("hyphen", ["\u2010", "\u2011"])
@pytest.mark.parametrize("right", ["11", "-11"])
def test_other_hyphens_are_a_minus(hyphen: str, right: str) -> None:
    negative = f"{hyphen}11"
    for name in ("contains", "exact", "math", "numeric"):
        assert score(name, right, negative) == float(right == "-11")
    for wrong in altered_numbers({"answer": right}):
        for name in ("exact", "math", "numeric"):
            assert score(name, right, wrong.replace("-", hyphen)) == 0.0


@pytest.mark.parametrize("hyphen", ["\u2010", "\u2011"])
def test_other_hyphens_within_texts_are_plain_ones(hyphen: str) -> None:
    assert score("exact", "2024-01-05", f"2024{hyphen}01{hyphen}05") == 1.0
    assert score("contains", "19", f"covid{hyphen}19") == 1.0
    assert score("math", "x-1", f"x{hyphen}1") == 1.0
    assert read_number(f"a 5{hyphen}year plan") == read_number("a 5-year plan") == Number(Fraction(5), False)


def test_f1_is_the_mean_of_precision_and_recall_of_words() -> None:
    """Of three words in the answer two are among the three right ones: 2 · 2 / (3 + 3)."""
    assert score("f1", "the red old house", "an old house there") == pytest.approx(2 / 3)
    assert score("f1", "red red", "red") == pytest.approx(2 / 3)
    assert score("f1", "red", "blue") == 0.0
    assert score("f1", "22", "2²") == 0.0
    assert score("f1", "H2O", "H₂O") == 1.0


@pytest.mark.parametrize("said", ["2516_8", "2516_{8}", "The answer is 2516_8.", "2516"])
def test_math_takes_a_base_below_a_number(said: str) -> None:
    assert score("math", "2516_8", said) == 1.0


@pytest.mark.parametrize(
    ("right", "said", "expected"),
    [
        (r"\frac{1}{2}", "0.5", 1.0),
        ("x^2+2x+1", "(x+1)^2", 1.0),
        (r"2\sqrt{2}", r"\sqrt{8}", 1.0),
        (r"\{1,2\}", "{2,1}", 1.0),
        ("3", r"$\boxed{3}$", 1.0),
        ("1,000", "1000", 1.0),
        ("x^2", "x^3", 0.0),
        ("5", "4, 5", 0.0),
        ("5", "5 = 5.0", 1.0),
        ("5", "3+2 = 5", 1.0),
        ("11", "5 + 6 = 11", 1.0),
        ("12", r"3 \cdot 4 = 12", 1.0),
        ("72", "Total = 48 + 24 = 72", 1.0),
        ("x^2 - 4 = 0", "x^2-4=0", 1.0),
        ("5", "4 = 5", 0.0),
        ("5", "5 = 4 = 5", 0.0),
        ("5", "negative 5", 0.0),
        ("5", None, 0.0),
    ],
)
def test_math_compares_expressions(right: str, said: str | None, expected: float) -> None:
    assert score("math", right, said) == expected


def test_math_works_in_any_thread() -> None:
    given: list[float] = []
    thread = threading.Thread(target=lambda: given.append(score("math", "1/2", "0.5")))
    thread.start()
    thread.join()
    assert given == [1.0]


def test_a_power_that_no_machine_can_hold_is_not_compared() -> None:
    began = time.perf_counter()
    assert remark("math", "5", "10^{100000000}+1") == "It is too large an expression to be compared."
    assert time.perf_counter() - began < 30.0


def test_what_takes_too_long_is_wrong_and_the_next_answer_is_compared() -> None:
    """A thread could not be ended here: such a power is computed in one call."""
    hidden = r"\left(10+1\right)^{100000000}+1"
    for _ in range(2):
        assert remark("math", "5", hidden) == "It is too large an expression to be compared."
        assert score("math", "5", "10/2") == 1.0


@pytest.mark.parametrize("answer_format", ["boxed", "whole"])
def test_a_thousand_hostile_answers_are_wrong_within_a_minute(answer_format: AnswerFormat) -> None:
    began = time.perf_counter()
    answers = [FORMATS[answer_format].find(each.after("How many?")) for each in hostile_answers(1000, 0)]
    assert {score("math", "73", said) for said in answers} == {0.0}
    assert time.perf_counter() - began < 60.0


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_right_answer_scores_1(name: str) -> None:
    """Each built-in scorer compares with the task's answer, so this answer is the gold answer."""
    payload = {"answer": "1/2"}
    scorer = scorer_named(name)
    gold = scorer.gold_answer(payload)
    assert gold == "1/2"
    assert checked_score(scorer, gold, payload).score == 1.0


@pytest.mark.parametrize("name", ["contains", "exact", "f1"])
def test_an_answer_that_is_too_long_to_be_given_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="it has 10,001 characters; allowed are 10,000"):
        scorer_named(name).check_task({"answer": "x" * 10_001})


def hostile() -> list[str]:
    made = random.Random(0)
    letters = "0123456789+-*/^(){}[]\\$%,.eE boxedfrac\n\x00é٣\ud7ff∞"
    texts = ["".join(made.choices(letters, k=made.randrange(60))) for _ in range(40)]
    return [
        *texts,
        *(
            "",
            " ",
            "\x00",
            "nan",
            "inf",
            "-inf",
            "1e999",
            "9" * 5000,
            "1/0",
            "None",
            "[]",
            "}" * 50,
            "\\frac",
        ),
        *("(" * 300, "^" * 300, r"\boxed{" * 50, "$" * 399, "1," * 5000, "__import__('os')", "lambda: 0"),
    ]


@pytest.mark.parametrize("name", BUILT_IN)
def test_hostile_answers_are_wrong_and_nothing_else(name: str) -> None:
    assert {score(name, "73", said) for said in hostile()} == {0.0}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("letter", ["7", "a", "{", "(", "\\", " ", "1/"])
def test_an_answer_of_a_megabyte_takes_no_time(name: str, letter: str) -> None:
    began = time.perf_counter()
    assert score(name, "73", letter * 1_000_000) == 0.0
    assert time.perf_counter() - began < 30.0


def test_a_plain_function_is_a_scorer() -> None:
    def length(answer: str | None, payload: Mapping[str, Any]) -> float:
        return min(1.0, len(answer or "") / float(payload["long"]))

    assert checked_score(Scorer(length), "abc", {"long": 4}) == Scored(0.75)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (float("nan"), "it gave nan; allowed are numbers from 0 to 1"),
        (1.5, "it gave 1.5; allowed"),
        (-0.1, "it gave -0.1; allowed"),
        ("1", "it gave '1'; allowed"),
        (None, "it gave None; allowed"),
        (Scored(float("inf")), "it gave inf; allowed"),
        (Scored(1.0, 3), "its remark is 3, not a text"),  # type: ignore[arg-type]
    ],
)
def test_a_score_that_is_none_fails(given: Any, message: str) -> None:
    with pytest.raises(ScorerFailed, match=message):
        checked_score(Scorer(lambda answer, payload: given), "x", {})


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), SystemExit(3)])
def test_what_a_scorer_raises_is_told_with_its_place(error: BaseException) -> None:
    def broken(answer: str | None, payload: Mapping[str, Any]) -> float:
        raise error

    with pytest.raises(ScorerFailed, match=rf"{type(error).__name__}: .* \(test_scorers.py, line \d+\)"):
        checked_score(Scorer(broken), "x", {})


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "9**9**9**9",
        "10^{100000000}+1",
        "x = 10 ** (100000)",
        "2^{33220}",  # it has 10,001 digits
        "100000000!",
        "\\boxed{3001!}",
        "1^2^3 + (7)^{99999999999999999999}",
    ],
)
def test_a_number_that_no_machine_can_hold_is_seen(text: str) -> None:
    assert has_huge_number(text)


@pytest.mark.parametrize(
    "text",
    [
        "2^{2^{3}}",  # 256
        "2^{33219}",  # 10,000 digits
        "1^{99999999999}",
        "10^{0^{99999}}",
        f"2^{{1{'0' * 320}^0}}",  # no float can hold the base of its exponent
        "2^{0^0}",
        "x^{10^{9}}",
        "e^{x^2}",
        "3000!",
        "12^{-3}",
        "5! + 2^10",
        "",
    ],
)
def test_others_are_compared(text: str) -> None:
    assert not has_huge_number(text)


def test_a_text_of_powers_alone_takes_no_time() -> None:
    """The text has as many characters as an expression may have."""
    assert has_huge_number("9^" * 200 + "9")
    assert not has_huge_number("1^" * 200 + "9")


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


@pytest.mark.parametrize("hyphen", ["\u2010", "\u2011"])
def test_a_question_with_other_hyphens_is_the_same(hyphen: str) -> None:
    assert reading_key(f"a 5{hyphen}year plan") == reading_key("a 5-year plan")


@pytest.mark.parametrize(
    ("one", "other"), [("2\u00b2", "22"), ("x\u2082", "x2"), ("2\u00bd", "21/2"), ("-5", "5")]
)
def test_what_means_something_else_stays_apart(one: str, other: str) -> None:
    assert reading_key(one) != reading_key(other)
