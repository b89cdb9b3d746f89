"""Differences of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line.invoke import invoke
from tests.command_line.replay.stores import replay


def test_two_runs_side_by_side(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "small",
        "--iteration",
        "2",
        "--from",
        "fine_tune",
        "--set",
        "fine_tune.steps=9",
        "--name",
        "longer",
    ]
    assert replay(store, *words).status == 0
    found = invoke("diff", "small", "longer", "--store", store, "--json").json
    assert found["settings"] == ["fine_tune.steps: 3 -> 9"]
    assert found["origin_a"] is None
    assert found["origin_b"]["stage"] == "fine_tune"
    sharing = {(each["iteration"], each["stage"]): each["sharing"] for each in found["stages"]}
    differing = {place for place, how in sharing.items() if how != "shared"}
    assert differing == {(2, "fine_tune"), (2, "evaluate")}
    assert [each["iteration"] for each in found["results"]] == [0, 1, 2]
    last = found["results"][-1]
    assert last["paired"]["tasks"] == 8
    assert last["paired"]["difference"] == pytest.approx(
        last["b"]["evaluate/greedy_success"]["value"] - last["a"]["evaluate/greedy_success"]["value"]
    )
    assert found["results"][0]["paired"] is None  # one shared evaluation
    monkeypatch.setattr("command_line.output._FILE_COLUMNS", 80)
    shown = invoke("diff", "small", "longer", "--store", store).output
    assert "B: longer, begun from fine_tune in iteration 2 of small" in shown
    assert "  fine_tune.steps: 3 -> 9\n" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["0..1", "the", "same"] in lines
    assert ["2", "differ:", "fine_tune,", "evaluate;", "the", "same:", "rollout_shard,"] in lines
    assert "Results after iterations 0..1: the same\n" in shown
    # As many tables as it takes for every column to be whole.
    assert ["iter", "1st", "A", "1st", "B", "2nd", "A", "2nd", "B", "gain", "A", "gain", "B"] in lines
    assert ["iter", "held-out", "A", "held-out", "B", "B", "-", "A"] in lines
    assert ["iter", "tokens", "A", "tokens", "B"] in lines
    assert "…" not in shown
    assert invoke("diff", "small", "absent", "--store", store).status == 2
