"""Numbers as people write them, and the scorer that compares them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from erl_pipeline.environments.scorers.numbers import Number, read_number
from tests.erl_pipeline.environments.scorers.scoring import remark, score


@pytest.mark.parametrize(
    ("text", "value", "percent"),
    [
        ("1,234.5", Fraction(2469, 2), False),
        ("-3e2", Fraction(-300), False),
        ("It costs $18.00 in all.", Fraction(18), False),
        ("3/4", Fraction(3, 4), False),
        ("1 1/2 cups", Fraction(3, 2), False),
        (r"\frac{3}{4}", Fraction(3, 4), False),
        (r"\$5", Fraction(5), False),
        ("US$18", Fraction(18), False),
        (r"-US\$18", Fraction(-18), False),
        ("minus US$18", Fraction(-18), False),
        ("− 7", Fraction(-7), False),
        (".5", Fraction(1, 2), False),
        (r"20\%", Fraction(20), True),
        ("x2 = 3", Fraction(3), False),
        ("–5", Fraction(-5), False),
        ("－５", Fraction(-5), False),
        ("minus 5", Fraction(-5), False),
        ("½", Fraction(1, 2), False),
        ("2½ cups", Fraction(5, 2), False),
        (r"\frac12", Fraction(1, 2), False),
        (r"1\frac{1}{2}", Fraction(3, 2), False),
        (r"2\frac12", Fraction(5, 2), False),
        (r"1\,\frac{1}{2}", Fraction(3, 2), False),
        (r"-1\ \dfrac{1}{2}", Fraction(-3, 2), False),
        ("1{,}234", Fraction(1234), False),
        ("20 percent", Fraction(20), True),
        ("2.5 million dollars", Fraction(2_500_000), False),
        (r"\boxed{5}", Fraction(5), False),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, value: Fraction, percent: bool) -> None:
    assert read_number(text) == Number(value, percent)


@pytest.mark.parametrize(
    "text",
    [
        *("", "twelve", "3 or 4", "1/0", "1,0000", "48+24=72", "1/2/3", "٣", "²"),
        *(r"2^\frac12", r"1.5\frac12", "1\n\\frac12"),
    ],
)
def test_what_is_no_number_or_several_is_not_read(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *("11!", "11²", "11₂", "11i", "11x", "5-", "11 + x", "11*x", "11^2"),
        *(r"x\leq 11", "x ≤ 11", "x > 5", "x>5", "5 < x", "n != 5", "not 5", "not US$5", "isn't 5"),
        *(
            r"\sqrt{11}",
            r"\sqrt\frac14",
            "x1/4",
            "√11",
            "-(11)",
            "f(11)",
            "log(11)",
            "log₂ 11",
            "x^{11}",
            "11/x",
            "x/11",
            r"\pi/11",
            "11 pi",
        ),
        *("half of 11", "twice 11", "the root of 11", "ten or 11", "11 or ten", "11 mod y", "more than 11"),
    ],
)
def test_what_says_something_else_of_a_number_is_not_read(text: str) -> None:
    assert read_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "**11**",
        "*11* eggs",
        "<b>11</b>",
        "<answer>11</answer>",
        "11 km/h",
        "11kg",
        "CO₂: 11 kg",
        "11-year plan",
        "11 - great",
        "x = 11",
        "the 11th",
        "It is 11, not more",
        "-> 11",
        "=> 11",
        "(11)",
        "１１",
        *(r"\textit{11}", r"\boxed{\underline{11}}", r"\left(11\right)", "Total(11)"),
        *("$11 or more", "11 or so", "at least 11", "no more than 11", "up to 11 people", "$11/h", "w/ 11"),
        *("11 hundred-dollar bills", "In the first half 11 goals", "non-negative 11"),
    ],
)
def test_words_and_marks_around_a_number_do_not_count(text: str) -> None:
    assert read_number(text) == Number(Fraction(11), False)


@pytest.mark.parametrize(
    "said",
    ["1_000", "1__000", r"1\_000", "1,000_000", "1.5_0", "3/4_0", "1 2_000", "5e3_0", "It is 1_000."],
)
def test_digits_joined_by_an_underscore_are_no_number(said: str) -> None:
    assert read_number(said) is None
    for name in ("math", "numeric"):
        for right in ("1", "1.5", "3/4", "1000", "5000"):
            assert score(name, right, said) == 0.0


@pytest.mark.parametrize("said", ["_It is 5_", "5_ ", "In file_1_2 there are 5", "x_1 = 5"])
def test_other_underscores_leave_a_number_as_it_is(said: str) -> None:
    assert read_number(said) == Number(Fraction(5), False)


def test_numeric_compares_to_a_millionth_or_the_tolerance_of_the_task() -> None:
    assert score("numeric", "72", "72.00") == 1.0
    assert score("numeric", "0.333333333", "1/3") == 1.0
    assert score("numeric", "72", "72.001") == 0.0
    assert score("numeric", "72", "72.4", tolerance=0.5) == 1.0
    assert remark("numeric", "72", "many") == "It is not a number, or holds more than one."


def test_a_percentage_is_said_with_its_sign_or_without() -> None:
    for right, said in (("20", "20%"), ("0.2", "20%"), ("20%", "20"), ("20%", "0.2"), ("20%", "20 %")):
        assert score("numeric", right, said) == 1.0
    assert score("numeric", "20%", "0.2%") == 0.0
