"""What `erl-pipeline serve` says of itself; that it works is in `tests/flows`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import pytest

from command_line import serve as command


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `serve` in a window that was closed: what it says of flow runs is lost, and they go on."""
    reading, writing = os.pipe()
    os.close(reading)
    gone, said = os.fdopen(writing, "w"), list[str]()

    def work(*given: Any) -> None:
        tell = given[-1]
        for line in ("one", "two"):
            tell(line)
            said.append(line)

    monkeypatch.setattr(command, "_serve", work)
    monkeypatch.setattr(sys, "stderr", gone)
    command.serve()
    assert said == ["one", "two"]
    with suppress(OSError):
        gone.close()
