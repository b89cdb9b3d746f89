"""The store reads the generated history like a real one, and the answers can be counted by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run

ROWS, ITERATIONS = 40, 12


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("history_growth")


def test_a_small_history_is_whole_and_is_answered(growth: ModuleType, tmp_path: Path) -> None:
    growth.build(str(tmp_path), ITERATIONS, ROWS)
    report = verify_run(ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)).open(growth.RUN))
    assert report.problems == []
    # Each iteration has 40 rollouts, and an evaluation of as many; a quarter are reflections.
    assert (report.trajectories, report.memory_entries, report.sft_rows) == (960, 120, 120)
    assert growth.ask("last_rewards", str(tmp_path))["answer"] == 40
    assert growth.ask("replay_plan", str(tmp_path))["answer"] == 7
    # Each of an iteration's ten entries is seen by one reflection of the next iteration. It reached that
    # reflection and the second attempt after it, both again in the evaluation, and the memory entry that was
    # made from it.
    assert growth.ask("rows_using_memory", str(tmp_path))["answer"] == 5
    # Every later policy was trained on a task of the first iteration: two policies of each iteration.
    assert growth.ask("policies_trained_on", str(tmp_path))["answer"] == 2 * ITERATIONS
    around = growth.bookkeeping(str(tmp_path))
    assert around["entries"] == 1 + 7 * ITERATIONS
    assert 0 < around["bookkeeping"] < 60
