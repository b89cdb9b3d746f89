"""Every measured number in the documents stands in a stored result, and says what is stored there."""

from __future__ import annotations

import pytest

from tests.documents.figures import (
    NUMBER,
    REASONS,
    as_shown,
    exempt,
    fill,
    look_up,
    looked_through,
    places,
    quotes,
    text_of,
    without_source,
)


def test_every_quote_stands_in_its_page_with_the_stored_numbers() -> None:
    missing = [f"{each.page}: {each.text}" for each in quotes() if each.text not in text_of(each.page).shown]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("path", looked_through())
def test_every_number_that_looks_like_a_result_has_a_source(path: str) -> None:
    found = without_source(path)
    assert not found, "\n".join(found)


def test_an_exemption_has_a_reason_and_words_and_is_needed() -> None:
    for page, reason, text in exempt():
        assert reason in REASONS, f"{page}: {reason}"
        assert any(each.isalpha() for each in text), f"{page}: {text}: quote it with a word"
        hidden = text_of(page).sentences
        found = [hidden[place : place + len(text)] for place in places(text_of(page).shown, text)]
        assert any(NUMBER.search(each) for each in found), f"{page}: {text}: not there, or no number in it"


def test_a_reference_is_looked_up_and_written_as_documents_write() -> None:
    stored = {"arms": {"a": {"0": [{"at": 2, "rate": 0.5}], "1": [{"at": 2, "rate": 0.25}]}}, "n": 59374}
    rates = look_up(stored, "arms.a.*[at=2].rate")
    assert rates == [0.5, 0.25]
    assert as_shown(rates, "r2") == ".38 (.25 to .50)"
    assert as_shown(rates, "+3") == "+.375"
    assert as_shown(look_up(stored, "n"), ",0") == "59,374"
    assert as_shown({"mean": -0.01, "low": -0.03, "high": 0.011}, "+i3") == "-.010 (-.030 to .011)"
    assert (as_shown(0.762, "0.3"), as_shown(-0.0464, "%1")) == ("0.762", "-4.6 %")
    with pytest.raises(KeyError):
        look_up(stored, "arms.b")
    with pytest.raises(ValueError, match="a quote without a reference"):
        fill("README.md", "success rose to .730")


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("rose from .27 to .76", [".27", ".76"]),
        ("took 12 s, 1,946 tokens/s", ["12", "1,946"]),
        ("+.034 (-.006 to .036)", ["+.034", "-.006", ".036"]),
        ("at 3 seeds in 10 iterations on 4x4", []),
        ("7 GB, 41 %, 2.41 times", ["7", "41", "2.41"]),
    ],
)
def test_what_looks_like_a_result(sentence: str, found: list[str]) -> None:
    assert NUMBER.findall(sentence) == found
