from __future__ import annotations

import shutil
from pathlib import Path

from command_line.stored_run import find_finished_run
from erl_pipeline.config.loading import load_config
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun


def test_a_finished_run_is_found_and_others_are_not(finished: FinishedRun) -> None:
    store = str(finished.store)
    config = load_config(finished.config)
    assert find_finished_run(config, store, 2) is not None
    assert find_finished_run(config, store, 3) is None
    assert find_finished_run(load_config(finished.config, ["name=other"]), store, 2) is None
    more = load_config(finished.config, ["resources.threads=2", "iterations=9"])
    assert find_finished_run(more, store, 2) is not None


def test_a_run_whose_last_iteration_has_a_flipped_byte_is_not_finished(
    finished: FinishedRun, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    checkpoints = {
        entry.iteration: store / "artifacts/fine_tune" / entry.artifact_id / "model/model.safetensors"
        for entry in RunStore(str(store)).open("small").stages()
        if entry.stage == "fine_tune"
    }
    # An artifact of an earlier iteration is not checked: the cost of that would grow with the run.
    flip_last_bit(checkpoints[1])
    assert find_finished_run(load_config(finished.config), str(store), 2) is not None
    flip_last_bit(checkpoints[2])
    assert find_finished_run(load_config(finished.config), str(store), 2) is None


def flip_last_bit(victim: Path) -> None:
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
