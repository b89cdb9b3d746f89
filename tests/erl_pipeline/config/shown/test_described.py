from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.config.plugins.extras import missing_of_extra
from erl_pipeline.config.shown import DescribedSetting, describe_settings


class Inner(Settings):
    size: tuple[int, int] = (1, 2)
    """Least and most."""


class Outer(Settings):
    mode: Literal["a", "b"]
    """Which
    way."""
    inner: Inner | None = None
    names: tuple[str, ...] = Field(default=(), max_length=3)


def test_settings_are_told_with_those_of_their_groups() -> None:
    assert list(describe_settings(Outer)) == [
        DescribedSetting("mode", "a | b", None, True, "Which way."),
        DescribedSetting("inner", "settings | null", None, False, ""),
        DescribedSetting("inner.size", "[whole number, whole number]", [1, 2], False, "Least and most."),
        DescribedSetting("names", "[text, ...]", [], False, ""),
    ]


def test_what_an_extra_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "lake_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lake-world\nVersion: 1.0\nRequires-Dist: not-there\n"
        'Requires-Dist: ice>=2 ; extra == "skating"\nRequires-Dist: pydantic>=1 ; extra == "skating"\n'
        'Requires-Dist: fish ; extra == "fishing"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing_of_extra("lake-world", "skating") == ["ice>=2"]
    assert missing_of_extra("lake-world", "") == []
    assert missing_of_extra("no-such-package", "skating") == []
