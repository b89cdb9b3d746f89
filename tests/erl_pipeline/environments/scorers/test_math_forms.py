"""Answers in many forms, scored by `math` and by math-verify alone, unboxed and boxed.

Each form has a verdict that was set by hand. Each form for which `math` and math-verify disagree stands in
one of two tables with the reason, so that a new disagreement fails, and so does one that is gone.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import math_verify
import pytest

from erl_pipeline.environments.scorers import checked_score, scorer_named
from erl_pipeline.environments.scorers.expressions import GIGABYTES, SECONDS
from erl_pipeline.environments.scorers.symbolic import AT_ONCE

Form = Callable[[int], str]


def grouped(number: int, by: str) -> str:
    return f"{number:,}".replace(",", by)


RIGHT: Mapping[str, Form] = {
    "n": str,
    "+n": lambda n: f"+{n}",
    "n.": lambda n: f"{n}.",
    "n.0": lambda n: f"{n}.0",
    "(n)": lambda n: f"({n})",
    "$n$": lambda n: f"${n}$",
    "$$n$$": lambda n: f"$${n}$$",
    r"\(n\)": lambda n: rf"\({n}\)",
    r"\boxed{n}": lambda n: rf"\boxed{{{n}}}",
    r"\text{n}": lambda n: rf"\text{{{n}}}",
    "**n**": lambda n: f"**{n}**",
    "full-width n": lambda n: "".join(chr(ord(digit) + 0xFEE0) for digit in str(n)),
    "x=n": lambda n: f"x={n}",
    "$n": lambda n: f"${n}",
    r"\$n": lambda n: rf"\${n}",
    "$n.00": lambda n: f"${n}.00",
    "€n": lambda n: f"€{n}",
    "n€": lambda n: f"{n}€",
    "USD n": lambda n: f"USD {n}",
    "n dollars": lambda n: f"{n} dollars",
    "n apples": lambda n: f"{n} apples",
    "n eggs": lambda n: f"{n} eggs",
    "n km/h": lambda n: f"{n} km/h",
    "n km": lambda n: f"{n} km",
    "n km per hour": lambda n: f"{n} km per hour",
    r"n\text{ cups}": lambda n: rf"{n}\text{{ cups}}",
    r"n^\circ": lambda n: rf"{n}^\circ",
    "n%": lambda n: f"{n}%",
    "The answer is n": lambda n: f"The answer is {n}",
    "The answer is $n$.": lambda n: f"The answer is ${n}$.",
    "Answer: n": lambda n: f"Answer: {n}",
    "Janet has n eggs left.": lambda n: f"Janet has {n} eggs left.",
    "It's n.": lambda n: f"It's {n}.",
    "n,nnn": lambda n: grouped(n, ","),
    "n nnn": lambda n: grouped(n, " "),
    r"n\,nnn": lambda n: grouped(n, r"\,"),
    "$n,nnn": lambda n: f"${grouped(n, ',')}",
    "2n/2": lambda n: f"{2 * n}/2",
    r"\frac{3n}{3}": lambda n: rf"\frac{{{3 * n}}}{{3}}",
    "(n-1)+1": lambda n: f"{n - 1}+1",
    "ne0": lambda n: f"{n}e0",
    "10ne-1": lambda n: f"{10 * n}e-1",
    r"n \times 10^0": lambda n: rf"{n} \times 10^0",
    "n-1 1/2 + 1/2": lambda n: f"{n - 1} 1/2 + 1/2",
    r"\sqrt{n^2}": lambda n: rf"\sqrt{{{n * n}}}",
}

WRONG: Mapping[str, Form] = {
    ".n": lambda n: f".{n}",
    "-n": lambda n: f"-{n}",
    "-$n": lambda n: f"-${n}",
    "n!": lambda n: f"{n}!",
    "n'": lambda n: f"{n}'",
    "n²": lambda n: f"{n}²",
    "n^2": lambda n: f"{n}^2",
    "last digit raised": lambda n: f"{n}"[:-1] + "⁰¹²³⁴⁵⁶⁷⁸⁹"[n % 10] if n > 9 else f"{n}⁷",
    "ni": lambda n: f"{n}i",
    "nx": lambda n: f"{n}x",
    "n-": lambda n: f"{n}-",
    "n + x": lambda n: f"{n} + x",
    "n + 1": lambda n: f"{n + 1}",
    "10n": lambda n: f"{n}0",
    "n n": lambda n: f"{n} {n}",
    "n-1 1": lambda n: f"{n - 1} 1",
    "n, n+1": lambda n: f"{n}, {n + 1}",
    "n+1, n": lambda n: f"{n + 1}, {n}",
    "n or n+1": lambda n: f"{n} or {n + 1}",
    "$n+1$ $n$": lambda n: f"${n + 1}$ ${n}$",
    r"\boxed{n+1} \boxed{n}": lambda n: rf"\boxed{{{n + 1}}} \boxed{{{n}}}",
    "not n": lambda n: f"not {n}",
    "at least n": lambda n: f"at least {n}",
    r"x \leq n": lambda n: rf"x \leq {n}",
    r"n \neq": lambda n: rf"{n} \neq",
    "n thousand": lambda n: f"{n} thousand",
    "n squared": lambda n: f"{n} squared",
    "one to n+1": lambda n: " ".join(map(str, range(max(1, n - 3), n + 2))),
    "n:00": lambda n: f"{n}:00",
    "ne1": lambda n: f"{n}e1",
}

_LAST = "unboxed, math-verify takes the last number of a text, whatever is around it"
_NONE = "unboxed, math-verify finds no number here"
_SUM = "unboxed, math-verify evaluates only what begins with a digit and has no LaTeX"
DIFFERS_FROM_UNBOXED: Mapping[str, str] = {
    "+n": _NONE,
    "(n)": _NONE,
    r"\text{n}": _NONE,
    "full-width n": _NONE,
    r"\$n": _NONE,
    r"n\,nnn": _LAST,
    "10ne-1": "math-verify has no `e` notation",
    r"n \times 10^0": _SUM,
    "n-1 1/2 + 1/2": "math-verify has no mixed numbers written with a blank",
    r"\sqrt{n^2}": _SUM,
    "n!": _LAST,
    "n'": "a prime changes what it stands at, as in f'",
    "n²": _LAST,
    "last digit raised": "of 3⁷ it takes 3",
    "ni": _LAST,
    "nx": _LAST,
    "n-": _LAST,
    "n + x": _LAST,
    "n n": _LAST,
    "n+1, n": _LAST,
    "$n+1$ $n$": _LAST,
    "not n": _LAST,
    "at least n": _LAST,
    r"x \leq n": _LAST,
    r"n \neq": _LAST,
    "n thousand": _LAST,
    "n squared": _LAST,
    "n:00": _LAST,
    "ne1": "math-verify has no `e` notation",
}

_PRODUCT = "boxed, math-verify takes words for products of variables"
_SIGN = "boxed, math-verify does not know this sign"
DIFFERS_FROM_BOXED: Mapping[str, str] = {
    "n.": _SIGN,
    "**n**": _SIGN,
    "full-width n": _SIGN,
    "€n": _SIGN,
    "n€": _SIGN,
    "USD n": _PRODUCT,
    "n dollars": _PRODUCT,
    "n eggs": _PRODUCT,
    "n km/h": _PRODUCT,
    "n km per hour": _PRODUCT,
    "The answer is n": _PRODUCT,
    "Answer: n": _PRODUCT,
    "n nnn": "boxed, 1 000 is 1 * 0 to math-verify",
    r"n\,nnn": "boxed, 1 000 is 1 * 0 to math-verify",
    "ne0": "math-verify has no `e` notation",
    "10ne-1": "math-verify has no `e` notation",
    "n-1 1/2 + 1/2": "boxed, math-verify reads 2 1/2 as 2 - 1/2",
    "n'": "a prime changes what it stands at, as in f'",
    "n-1 1": "boxed, math-verify adds up what stands side by side",
}


def numbers() -> list[int]:
    made = random.Random(25)
    return [
        *(3, 4, 7),  # 1 and 2 are their own factorials
        *made.sample(range(10, 100), 4),
        *made.sample(range(100, 1000), 4),
        *made.sample(range(1000, 100_000), 4),
    ]


@functools.cache
def parsed(text: str) -> list[object]:
    found: list[object] = math_verify.parse(text, parsing_timeout=None)
    return found


def alone(right: str, said: str) -> float:
    """The score by math-verify alone."""
    return float(math_verify.verify(parsed(right), parsed(said), timeout_seconds=None))


def score(right: str, said: str) -> float:
    return checked_score(scorer_named("math"), said, {"answer": right}).score


def test_a_thousand_answers_in_seventy_five_forms() -> None:
    cases = [
        (expected, name, str(number), form(number))
        for expected, forms in ((1.0, RIGHT), (0.0, WRONG))
        for name, form in forms.items()
        for number in numbers()
    ]
    assert len(cases) == 75 * 15
    unlike: dict[str, set[str]] = {"unboxed": set(), "boxed": set()}
    # One after the other: what notes the executed lines of tests is not safe among threads.
    for expected, name, right, said in cases:
        given = score(right, said)
        assert given == expected, f"{name}: {said!r} for {right!r} scores {given}"
        if given != alone(right, said):
            unlike["unboxed"].add(name)
        if given != alone(rf"\boxed{{{right}}}", rf"\boxed{{{said}}}"):
            unlike["boxed"].add(name)
    assert unlike["unboxed"] == set(DIFFERS_FROM_UNBOXED)
    assert unlike["boxed"] == set(DIFFERS_FROM_BOXED)


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("-11", "-$11"),
        ("-11", r"-\$11"),
        ("-11", "$-11"),
        ("-11", "−11"),
        ("-11", "- 11"),
        ("1 000", "1000"),
        ("1000000", "1 000 000 eggs"),
        ("5/2", "2 1/2"),
        ("-5/2", "-2 1/2"),
        ("2 1/2", "2.5 cups"),
        ("5/2", "2½"),
        ("0.001", "1e-3"),
        ("1e-3", "0.001"),
        ("1.5e3", "1500"),
        ("2500", "$2.5e3"),
        ("x^2+1", "x²+1"),
        ("2x+3", "The answer is $2x+3$."),
        ("1/2", r"It is $\frac{1}{2}$ of it."),
        ("f'(x)", "f'(x)"),
        ("A", "(A)"),
        ("11!", "11!"),
        (r"\begin{pmatrix}1 & 2\\ 3 & 4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        ("1", "1!"),
    ],
)
def test_the_same_in_another_form_is_right(right: str, said: str) -> None:
    assert score(right, said) == 1.0


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("f", "f'"),
        ("x", "X"),
        ("2x+3", "2X+3"),
        ("22", "2²"),
        ("35", "17 18"),
        ("35", r"17\ 18"),
        ("35", r"17\quad 18"),
        ("35", "{17}{18}"),
        ("18", "$17$ $18$"),
        ("0", "1 000"),
        ("3/2", "2 1/2"),
        ("1", "1e-3"),
        ("11", "isn't 11"),
        ("11", "11 xy"),
        ("11", "11 dozen"),
        ("11", "ten or 11"),
        ("11", "11 eggs and 12 hens"),
        ("11", "$10 or $11"),
        ("11", "11?"),
    ],
)
def test_another_expression_is_wrong(right: str, said: str) -> None:
    assert score(right, said) == 0.0


def test_hostile_answers_hold_up_no_other() -> None:
    """Each of the two computes a number of 100 million digits, until its two seconds have passed."""
    hidden = r"\left(10+1\right)^{100000000}+1"
    order: list[float] = []

    def answer(said: str) -> None:
        order.append(score("11", said))

    answer("11.0")  # Now the program that compares runs.
    hostile = [threading.Thread(target=answer, args=(f"{hidden}+{number}",)) for number in range(2)]
    good = [threading.Thread(target=answer, args=(f"{22 + number}-{11 + number}",)) for number in range(4)]
    for thread in (*hostile, *good):
        thread.start()
    for thread in (*hostile, *good):
        thread.join()
    assert order == [1.0] * 5 + [0.0] * 2


def test_the_page_names_the_limits() -> None:
    page = " ".join(Path("docs/environments/questions.md").read_text(encoding="utf-8").split())
    assert f"For one answer a process may use {SECONDS:g} s of processor time and {GIGABYTES} GiB;" in page
    assert f"Up to {AT_ONCE} answers are compared at a time" in page
