"""A run that learns nothing warns once, in all places that people read, and may be stopped."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from erl_pipeline.runs.report import write_run_report
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, StoreError
from storage.runs.run import RunStore
from storage.runs.warnings import read_warnings
from tests.erl_pipeline.runs.small_runs import go, ids, small

# In the small run both attempts at each of two tasks fail.
NO_ADVANTAGE = {"no_advantage": 1, "ill_formed": None, "cut_off": None}


def test_a_warning_is_said_once_recorded_and_shown(store: Path, tmp_path: Path) -> None:
    config = small(warnings=NO_ADVANTAGE, metrics=["tensorboard"])
    (said,) = go(config, store, 4).warnings
    assert said.startswith("iteration ")
    assert "In this iteration no trajectory of update_policy had an advantage" in said
    assert said.endswith("See rollouts.group_size, rollouts.selection and the environment's reward.")
    (recorded,) = read_warnings(str(store), "small")
    assert (recorded.kind, recorded.sentence) == ("no_advantage", said)
    assert go(config, store, 5).warnings == []
    run = RunStore(str(store)).open("small")
    report = write_run_report(ArtifactStore(str(store)), run, tmp_path / "report.html")
    assert html.escape(said[1:]).replace("&#x27;", "&#39;") in report.read_text(encoding="utf-8")
    events = b"".join(
        path.read_bytes() for path in sorted((store / "runs/small/tensorboard").glob("events*"))
    )
    assert said.encode() in events


def test_a_gate_stops_the_run_until_it_is_taken_away(store: Path) -> None:
    stopping = small(warnings={**NO_ADVANTAGE, "stop_on": ["no_advantage"]})
    with pytest.raises(ConfigError, match=r"warnings\.stop_on: no_advantage stops the run"):
        go(stopping, store, 6)
    reached = max(place.iteration for place in ids(store))
    assert reached < 6
    with pytest.raises(ConfigError, match=r"take no_advantage out of warnings\.stop_on"):
        go(stopping, store, 6)
    assert max(place.iteration for place in ids(store)) == reached
    go(small(warnings=NO_ADVANTAGE), store, reached + 1)
    assert max(place.iteration for place in ids(store)) == reached + 1


def test_a_record_that_was_changed_is_refused(store: Path) -> None:
    go(small(warnings=NO_ADVANTAGE), store, 4)
    path = store / "runs/small/warning-no_advantage.json"
    path.write_text(path.read_text().replace("iteration", "repetition"))
    with pytest.raises(StoreError, match="was changed after it was written"):
        read_warnings(str(store), "small")
