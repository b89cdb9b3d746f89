"""."""

from __future__ import annotations

import pytest

from erl_pipeline.config.base import Settings, checked_address, with_settings


def test_an_address_is_kept_without_a_slash_at_its_end() -> None:
    assert checked_address("http://gpu-1:8000/") == "http://gpu-1:8000"
    assert checked_address("https://[::1]:80/x") == "https://[::1]:80/x"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("gpu-1:8000", "gpu-1:8000: allowed are addresses such as"),
        ("ftp://gpu-1", "ftp://gpu-1: allowed are addresses such as"),
        ("http://user:secret@gpu-1", "^it holds a name, a password or a query"),
        ("http://gpu-1?key=secret", "^it holds a name, a password or a query"),
    ],
)
def test_what_is_no_address_or_holds_a_key_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_address(url)


class Inner(Settings):
    file: str | None = None


class Outer(Settings):
    parts: dict[str, Inner]
    file: str = "own"


def test_settings_are_changed_at_dotted_keys_and_all_others_stay() -> None:
    outer = Outer(parts={"a": Inner(file="x"), "b": Inner(file="y")})
    changed = with_settings(outer, {"parts.a.file": None, "file": "other"})
    assert changed == Outer(parts={"a": Inner(), "b": Inner(file="y")}, file="other")
    assert outer.parts["a"].file == "x"


@pytest.mark.parametrize("key", ["none", "parts.c.file", "parts.a.none", "file.deeper"])
def test_a_key_that_leads_nowhere_is_an_error(key: str) -> None:
    with pytest.raises(KeyError):
        with_settings(Outer(parts={"a": Inner()}), {key: 1})


def test_a_key_in_a_mapping_may_have_dots() -> None:
    """Such as the name of a file."""

    class Files(Settings):
        files: dict[str, str | None]

    changed = with_settings(Files(files={"agent.py": "a", "b": "b"}), {"files.agent.py": None})
    assert changed.files == {"agent.py": None, "b": "b"}
