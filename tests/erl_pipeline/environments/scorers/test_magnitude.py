from __future__ import annotations

import pytest

from erl_pipeline.environments.scorers.numbers import has_huge_number


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
