from __future__ import annotations

from erl_pipeline.views.report.texts import bytes_text, percent, printable, seconds_text


def test_a_text_is_cut_and_says_by_how_much() -> None:
    assert printable("abc\u200bdef", 5) == "abc⟨U+200B⟩d\n… 2 more characters"


def test_characters_that_hide_are_shown_as_symbols() -> None:
    """Soft hyphens, joiners, marks of direction and the tag characters, which can hold a whole text."""
    hidden = "a\u00adb\u061cc\u2060d\ufeffe\U000e0041f"
    assert printable(hidden, 50) == "a⟨U+00AD⟩b⟨U+061C⟩c⟨U+2060⟩d⟨U+FEFF⟩e⟨U+E0041⟩f"


def test_sizes_and_times_are_written_for_people() -> None:
    assert [bytes_text(size) for size in (0, 4e5, 5e5, 4.2e6, 5e8, None)] == [
        *("0.0 kB", "400.0 kB", "0.5 MB", "4.2 MB", "0.5 GB", "")
    ]
    assert [seconds_text(each) for each in (0.04, 75.0, 7199.0, 11160.0, None)] == [
        *("0.0 s", "75.0 s", "120 min", "3.1 h", "")
    ]


def test_shares_are_written_without_decimals() -> None:
    assert [percent(share) for share in (0.0, 0.125, 1.0)] == ["0 %", "12 %", "100 %"]
