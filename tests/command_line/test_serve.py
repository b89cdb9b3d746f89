"""What `erl-pipeline serve` says of itself; that it works is in `tests/flows`."""

from __future__ import annotations

import socket

import pytest

from command_line.serve import for_others


@pytest.mark.parametrize("every", ["0.0.0.0", "[::]"])
def test_an_address_for_other_machines_names_this_one(every: str) -> None:
    name = socket.gethostname()
    assert for_others(f"http://{every}:4200/api") == f"http://{name}:4200/api"
    assert for_others("http://127.0.0.1:4200/api") == "http://127.0.0.1:4200/api"
    assert for_others("http://10.0.0.0:4200") == "http://10.0.0.0:4200"
