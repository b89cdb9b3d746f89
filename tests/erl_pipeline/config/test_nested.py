from __future__ import annotations

import pytest

from erl_pipeline.config.base import Settings, with_settings


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
