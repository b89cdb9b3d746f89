from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest


def line(number: int, board: str) -> str:
    return json.dumps({"task_id": str(number), "board": [board], "max_steps": 8})


def test_every_third_different_board_is_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    split = importlib.import_module("workloads.paper_boards").split
    boards = ["a", "b", "a", "c", "d", "e", "b", "f", "g"]
    training, held_out = split([line(number, board) for number, board in enumerate(boards)])
    # a, b, c, d, e, f, g, each by its first line.
    assert training == [line(0, "a"), line(1, "b"), line(4, "d"), line(5, "e"), line(8, "g")]
    assert held_out == [line(3, "c"), line(7, "f")]
