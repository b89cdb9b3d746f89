from __future__ import annotations

import shutil
from pathlib import Path

from command_line.run_state import completed_iterations, find_finished_run, latest_checkpoint
from erl_pipeline.config.load import load_config
from storage.runs import RunStore
from tests.command_line.conftest import FinishedRun


def test_a_finished_run_is_found_and_others_are_not(finished: FinishedRun) -> None:
    store = str(finished.store)
    config = load_config(finished.config)
    assert find_finished_run(config, store, 2) is not None
    assert find_finished_run(config, store, 3) is None
    assert find_finished_run(load_config(finished.config, ["name=other"]), store, 2) is None


def test_other_settings_are_another_run_but_threads_and_iterations_are_not_settings(
    finished: FinishedRun,
) -> None:
    store = str(finished.store)
    assert find_finished_run(load_config(finished.config, ["seed=1"]), store, 2) is None
    assert (
        find_finished_run(load_config(finished.config, ["threads=2", "iterations=9"]), store, 2) is not None
    )


def test_a_run_with_a_flipped_byte_is_not_finished(finished: FinishedRun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    victim = next(store.glob("artifacts/fine_tune/*/model/model.safetensors"))
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    assert find_finished_run(load_config(finished.config), str(store), 2) is None


def test_the_latest_checkpoint_is_that_of_the_last_training_stage(finished: FinishedRun) -> None:
    entries = RunStore(str(finished.store)).open("small").stages()
    stages = {
        iteration: checkpoint.stage
        for iteration in (0, 1, 2, None)
        if (checkpoint := latest_checkpoint(entries, iteration)) is not None
    }
    assert stages == {0: "bootstrap", 1: "fine_tune", 2: "fine_tune", None: "fine_tune"}
    latest = latest_checkpoint(entries)
    assert latest is not None
    assert latest.iteration == 2
    assert latest_checkpoint(entries, 3) is None


def test_an_iteration_is_complete_with_its_last_checkpoint(finished: FinishedRun) -> None:
    config = load_config(finished.config)
    entries = RunStore(str(finished.store)).open("small").stages()
    assert completed_iterations(config, entries) == 2
    without = [entry for entry in entries if (entry.iteration, entry.stage) != (2, "fine_tune")]
    assert completed_iterations(config, without) == 1
    assert completed_iterations(config, []) == 0
