"""Configurations of stored runs: which settings may change, and which runs have a configuration."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from erl_pipeline.runs.config import is_blank, keep_settings, refuse_other_settings, run_config
from erl_pipeline.runs.driver import open_run
from storage.errors import ConfigError, InputError, RunBusy
from storage.runs.documents import BranchOrigin, RunWarning, read_warnings, record_warning, write_origin
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.planned_runs import config
from tests.erl_pipeline.runs.small_runs import Notes, small

VLLM = "engine={type: vllm}"


@pytest.mark.parametrize(
    "setting",
    [
        "iterations=9",
        "resources.threads=2",
        "resources.devices=2",
        "store.cache_gb=50",
        "store.connections=2",
        "runner={type: in_process}",
        "metrics=[]",
        "engine.startup_seconds=900",
        "engine.max_failures=9",
        "engine.servers=[{url: http://localhost:8000}]",
    ],
)
def test_what_decides_no_result_may_change_in_a_run(tmp_path: Path, setting: str) -> None:
    run = RunStore(str(tmp_path)).create("small", config(VLLM).model_dump(mode="json"))
    refuse_other_settings(run, config(VLLM, setting))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("engine.max_in_flight=8", r"engine\.max_in_flight: 64 -> 8"),
        ("seed=3", "seed: 0 -> 3"),
        ("method=rlvr", r"method\.type: \"erl\" -> \"rlvr\""),
        ("pipeline.lag=0", ""),
    ],
)
def test_what_decides_a_result_may_not(tmp_path: Path, setting: str, said: str) -> None:
    run = RunStore(str(tmp_path)).create("small", config(VLLM).model_dump(mode="json"))
    if not said:
        refuse_other_settings(run, config(VLLM, setting))
        return
    with pytest.raises(ConfigError, match=said):
        refuse_other_settings(run, config(VLLM, setting))


def test_a_run_that_was_begun_before_a_setting_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    settings = small().model_dump(mode="json")
    del settings["served_feedback"], settings["method"]["memory"]["withdrawal"]
    run, notes = RunStore(str(tmp_path)).create("small", settings), Notes()
    run.record(None, "prepare_tasks", "a", kind="tasks", reused=False, seconds=1.0)
    with open_run(run_config(run), str(tmp_path), notes, notes.stop) as opened:
        assert run_config(opened.run) == small()
    with pytest.raises(ConfigError, match="other settings: seed: 0 -> 5"):
        refuse_other_settings(run, small(seed=5))
    with pytest.raises(ConfigError, match=r"settings: method\.memory\.withdrawal: off -> on"):
        refuse_other_settings(run, small(method={"type": "erl", "memory": {"withdrawal": {"last": 4}}}))


def test_a_run_may_go_on_with_its_trainer_on_more_nodes(tmp_path: Path) -> None:
    four = "trainer={type: fsdp2, processes: 4}"
    run = RunStore(str(tmp_path)).create("small", config(four).model_dump(mode="json"))
    on_two = config(four, "trainer.nodes=2", "trainer.address=10.0.0.1:29500")
    refuse_other_settings(run, on_two)
    with pytest.raises(ConfigError, match=r"trainer\.processes: 4 -> 2"):
        refuse_other_settings(run, config("trainer={type: fsdp2, processes: 2}"))
    with pytest.raises(ConfigError, match=r"trainer\.type: \"fsdp2\" -> \"local\""):
        refuse_other_settings(run, config())


def test_a_run_without_any_artifact_takes_other_settings(tmp_path: Path) -> None:
    runs, store = RunStore(str(tmp_path)), str(tmp_path)
    run = runs.create("small", small(seed=3).model_dump(mode="json"))
    said = RunWarning(kind="group_size", iteration=0, text="", setting="", said_at=datetime.now(UTC))
    record_warning(store, "small", said)
    notes = Notes()
    with open_run(small(seed=4), store, notes, notes.stop) as opened:
        assert opened.run.config["seed"] == 4
    assert run_config(runs.open("small")) == small(seed=4)
    assert read_warnings(store, "small") == []
    run.record(None, "prepare_tasks", "a", kind="tasks", reused=False, seconds=1.0)
    with (
        pytest.raises(ConfigError, match="run small exists with other settings: seed: 4 -> 5"),
        open_run(small(seed=5), store, notes, notes.stop),
    ):
        pass


def test_a_run_has_the_settings_that_may_change_as_it_was_last_continued(tmp_path: Path) -> None:
    """Else a scheduled maintenance would prune by the rule of the beginning, which was taken back."""
    runs, notes = RunStore(str(tmp_path)), Notes()
    run = runs.create("small", small(retention={"checkpoints": "1"}).model_dump(mode="json"))
    run.record(None, "prepare_tasks", "a", kind="tasks", reused=False, seconds=1.0)
    without = small(iterations=5, engine={"type": "transformers", "max_batch_sequences": 8})
    with pytest.raises(ConfigError), open_run(without, str(tmp_path), notes, notes.stop):
        pass
    assert run_config(runs.open("small")).retention.checkpoints == "1"
    with open_run(small(iterations=5), str(tmp_path), notes, notes.stop):
        assert run_config(runs.open("small")) == small(iterations=5)

    longer = small(iterations=9)
    with run.lock(), pytest.raises(RunBusy):
        keep_settings(runs.open("small"), longer)
    keep_settings(runs.open("small"), longer)
    with run.lock():
        keep_settings(runs.open("small"), longer)
    assert run_config(runs.open("small")) == longer


def test_a_run_that_begins_from_another_or_is_not_trained_keeps_its_settings(tmp_path: Path) -> None:
    runs, store = RunStore(str(tmp_path)), str(tmp_path)
    branch = runs.create("branch", small().model_dump(mode="json"))
    assert is_blank(store, branch)
    write_origin(store, "branch", BranchOrigin(run="small", iteration=1, stage="fine_tune"))
    memory = runs.create("kitchen", {"standalone": True, "memory": {"embedding_model": "words"}})
    assert not is_blank(store, branch)
    assert not is_blank(store, memory)


def test_a_run_has_the_configuration_that_it_was_begun_with(tmp_path: Path) -> None:
    run = RunStore(str(tmp_path)).create("small", config("seed=3").model_dump(mode="json"))
    assert run_config(run) == config("seed=3")


def test_settings_of_another_version_and_what_is_not_trained_are_refused(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    with pytest.raises(ConfigError, match="settings of another version"):
        run_config(runs.create("old", {"name": "old", "of_old": 1}))
    with pytest.raises(InputError, match="holds imported trajectories"):
        run_config(runs.create("from-a-file", {"imported": {"file": "a.parquet"}}))
    with pytest.raises(
        InputError, match="holds the traffic of run small and is not trained; `learn small` trains"
    ):
        run_config(runs.create("small-traffic", {"imported": {"served": "small"}}))
    memory = {"standalone": True, "memory": {"embedding_model": "words"}}
    with pytest.raises(InputError, match="kitchen is a standalone memory"):
        run_config(runs.create("kitchen", memory))
