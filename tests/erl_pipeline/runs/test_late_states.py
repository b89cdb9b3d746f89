"""Runs that write the states of their optimizers slowly, beside the stages that come next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.checkpoints import LoadedPolicies
from storage.artifacts.late_files import LateFiles
from storage.errors import StoreError
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import go, hashes, small
from tests.late_writing import slowed

PAUSE = 0.01


def training(background_mb: float | None) -> RunConfig:
    """A small run whose updates take steps, since entropy is rewarded, which needs no advantage."""
    objective = {"advantages_per": "group", "entropy_coefficient": 0.1}
    return small(objective=objective, store={"background_commit_mb": background_mb})


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose stages commit what they write before they end."""
    store = tmp_path_factory.mktemp("at-once")
    go(training(None), store)
    return store


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Make each file take a while, and record of each wait whether there was something to wait for."""
    wait = LateFiles.wait
    found: list[bool] = []

    def noted(files: LateFiles) -> None:
        found.append(files._last is not None and not files._last.done())
        wait(files)

    # The next stage has to begin meanwhile.
    monkeypatch.setattr(LateFiles, "begin", slowed(partial(time.sleep, PAUSE)))
    monkeypatch.setattr(LateFiles, "wait", noted)
    return found


def test_the_next_training_waits_and_all_bytes_are_the_same(
    tmp_path: Path, at_once: Path, waited: list[bool]
) -> None:
    go(training(0), tmp_path)
    assert any(waited), "an update is followed by a fine-tuning of the same weights"
    assert hashes(tmp_path) == hashes(at_once)


def test_a_training_that_has_to_read_the_state_waits_for_its_file(
    tmp_path: Path, at_once: Path, waited: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in another process, which keeps no trainer and writes nothing itself."""

    def keeps_none(*_given: Any) -> None:
        return None

    monkeypatch.setattr(LoadedPolicies, "take_trainer", keeps_none)
    monkeypatch.setattr(LateFiles, "wait", keeps_none)
    go(training(0), tmp_path)
    assert hashes(tmp_path) == hashes(at_once)


def test_a_failure_ends_the_run_and_the_next_command_continues_it(
    tmp_path: Path, at_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(parts: Iterable[memoryview]) -> Iterator[memoryview]:
        yield next(iter(parts))
        raise MemoryError("no room for a tensor")

    begin = LateFiles.begin

    def failing(late: LateFiles, files: Mapping[Path, Iterable[memoryview]]) -> None:
        begin(late, {path: gone(parts) for path, parts in files.items()})

    with monkeypatch.context() as patch:
        patch.setattr(LateFiles, "begin", failing)
        with pytest.raises((StoreError, MemoryError), match="no room for a tensor"):
            go(training(0), tmp_path)
    assert "update_policy" not in {entry.stage for entry in RunStore(str(tmp_path)).open("small").recorded()}
    assert not list((tmp_path / "staging").iterdir())
    go(training(0), tmp_path)
    assert hashes(tmp_path) == hashes(at_once)
