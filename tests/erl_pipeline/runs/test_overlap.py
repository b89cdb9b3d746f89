"""A run whose iterations overlap on two worker processes has the same bytes as a run in sequence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import DECOUPLED, go, hashes, ids, small

LAGGED: Mapping[str, Any] = {**DECOUPLED, "pipeline": {"lag": 1}}
TWO_PROCESSES: Mapping[str, Any] = {
    "runner": {"type": "prefect", "task_runner": "processes", "workers": 2},
    "resources": {"threads": 1, "devices": 2},
}


@pytest.mark.slow
def test_two_processes_give_the_bytes_of_a_run_in_sequence(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    go(small(**LAGGED, iterations=4), one)
    notes = go(small(**LAGGED, **TWO_PROCESSES, iterations=4), two)
    assert notes.warnings == []
    assert ids(one) == ids(two)
    assert hashes(one) == hashes(two)
    assert verify_run(ArtifactStore(str(two)), RunStore(str(two)).open("small")).problems == []
