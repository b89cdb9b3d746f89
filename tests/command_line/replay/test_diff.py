"""Differences of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line.invoke import invoke
from tests.command_line.replay.stores import replay


def test_two_runs_side_by_side(store: Path) -> None:
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
    shown = invoke("diff", "small", "longer", "--store", store).output
    assert "B: longer, begun from fine_tune in iteration 2 of small" in shown
    assert "  fine_tune.steps: 3 -> 9\n" in shown
    assert invoke("diff", "small", "absent", "--store", store).status == 2
