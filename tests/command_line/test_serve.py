"""What `erl-pipeline serve` says of itself; that it works is in `tests/flows`."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import Any

import pytest

from command_line import serve as command
from command_line.serve import for_others


@pytest.mark.parametrize("every", ["0.0.0.0", "[::]"])
def test_an_address_for_other_machines_names_this_one(every: str) -> None:
    name = socket.gethostname()
    assert for_others(f"http://{every}:4200/api") == f"http://{name}:4200/api"
    assert for_others("http://127.0.0.1:4200/api") == "http://127.0.0.1:4200/api"
    assert for_others("http://10.0.0.0:4200") == "http://10.0.0.0:4200"


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
