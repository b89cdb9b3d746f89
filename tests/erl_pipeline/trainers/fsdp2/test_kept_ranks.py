"""Ranks that serve one training stage after the other: what they load, their bytes, and their end."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.trainers.fsdp2 import TRAINER, kept_ranks
from erl_pipeline.trainers.fsdp2.kept_ranks import KeptRanks
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup, _OtherNode
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.interface import TrainingStart
from storage.artifacts.store import ArtifactStore
from tests.erl_pipeline.runs.small_runs import go, hashes, ids
from tests.erl_pipeline.runs.test_two_models import METHOD, save_model
from tests.erl_pipeline.trainers.fsdp2.nodes import Node
from tests.erl_pipeline.trainers.fsdp2.orders import Orders
from tests.erl_pipeline.trainers.fsdp2.rows import ROWS, Start, reinforcement
from tests.erl_pipeline.trainers.fsdp2.sharded import TrainedOnOne, sharded
from tests.erl_pipeline.trainers.fsdp2.stopped import is_there
from tests.erl_pipeline.trainers.fsdp2.test_trainer import SUPERVISED, assert_equal, keep, on_two
from tests.waiting import wait_for


def kept_by(kept: KeptRanks, begun: TrainingStart) -> TrainingStart:
    """A start whose trainers are lent these ranks."""
    assert begun.context is not None
    return replace(begun, context=replace(begun.context, keep=lambda _name, _make: kept))


def without_states(store: Path) -> list[dict[str, str]]:
    return [
        {name: digest for name, digest in files.items() if name != "optimizer.safetensors"}
        for files in hashes(store).values()
    ]


def test_kept_ranks_load_once_and_give_the_bytes_of_new_ones(
    trained_on_one: TrainedOnOne, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two iterations have four training stages. On GPUs that sampling needs too, ranks end before a policy is
    sampled from, so new ones begin with the update of the second iteration. After a stop others begin with
    its fine-tuning."""
    kept, told = trained_on_one.store, trained_on_one.orders
    assert told.done.count("save") == 4
    assert told.done.count("begin") == 1
    assert len(told.groups) == 1
    assert not list(kept.parent.glob("**/fsdp2-*"))

    monkeypatch.setattr(kept_ranks, "training_device", lambda: torch.device("cuda"))
    go(sharded(1), tmp_path / "new", 2, stop_after="update_policy of iteration 2")
    assert orders.done.count("begin") == len(orders.groups) == 2
    go(sharded(1), tmp_path / "new", 2)
    assert orders.done.count("begin") == len(orders.groups) == 3
    assert orders.done.count("sleep") == 0
    assert hashes(tmp_path / "new") == hashes(kept)
    trained = [ids(tmp_path / "new")[StageKey(each, "update_policy", "")] for each in (1, 2)]
    steps = [ArtifactStore(str(tmp_path / "new")).open(each).manifest.counters for each in trained]
    assert all(each["optimizer_steps"] > 0 for each in steps)


def test_two_models_take_turns_on_the_ranks_unless_these_alone_have_a_state(
    orders: Orders, tmp_path: Path
) -> None:
    """Two iterations train each model once in each. With states committed each time, the one group loads four
    times. Without, the state of each is in a group of its own, and the weights are the same."""
    policy = {"type": "pretrained", "model": str(save_model(tmp_path / "base")), "dtype": "bfloat16"}
    changes: dict[str, Any] = {"method": METHOD, "policy": policy}
    go(sharded(1, **changes), tmp_path / "1", 2)
    assert (orders.done.count("begin"), orders.done.count("save"), len(orders.groups)) == (4, 4, 1)
    notes = go(sharded(1, retention={"optimizer_every": 2}, **changes), tmp_path / "2", 2)
    assert notes.warnings == []
    assert (orders.done.count("begin"), orders.done.count("save"), len(orders.groups)) == (4 + 2, 8, 1 + 2)
    assert without_states(tmp_path / "2") == without_states(tmp_path / "1")


@pytest.mark.usefixtures("orders")
def test_a_run_repeats_what_ended_ranks_alone_had(trained_on_one: TrainedOnOne, tmp_path: Path) -> None:
    """The run is stopped when its ranks alone have the state of iteration 1."""
    every = {"optimizer_every": 3}
    go(sharded(1, retention=every), tmp_path / "2", 2, stop_after="rollout_shard 0000 of iteration 2")
    notes = go(sharded(1, retention=every), tmp_path / "2", 2)
    assert "2 updates repeated" in notes.warnings[-1]
    assert without_states(tmp_path / "2") == without_states(trained_on_one.store)


def test_idle_ranks_wait_without_a_processor_and_dead_ones_are_replaced(
    first: Path, start: Start, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KeptRanks() as kept:
        begun = kept_by(kept, start(first / "llama"))

        def scored() -> tuple[Fsdp2Trainer, set[int]]:
            trainer, before = Fsdp2Trainer(1, begun), set(orders.processes)
            trainer.logprobs(ROWS, 12)
            trainer.close()
            return trainer, orders.processes - before

        trainer, processes = scored()
        assert len(processes) == 1
        waiting = [*map(psutil.Process, processes), *psutil.Process().children()]
        used = sum(sum(each.cpu_times()[:2]) for each in waiting)
        time.sleep(3.0)  # What idle processes use is seen only over a time.
        assert sum(sum(each.cpu_times()[:2]) for each in waiting) - used < 0.3

        kept.make_room()  # Only GPUs are needed by others.
        assert scored()[1] == set()
        assert trainer.lasts()
        psutil.Process(processes.pop()).kill()
        wait_for("the end of the group", lambda: not trainer.lasts())
        trainer, processes = scored()
        assert len(processes) == 1

        monkeypatch.setattr(kept_ranks, "training_device", lambda: torch.device("cuda"))
        kept.make_room()
        assert not trainer.lasts()
        assert not any(map(is_there, processes))
    assert len(orders.groups) == 2


def test_of_two_trainers_whose_ranks_sleep_one_has_the_gpus_and_ranks_that_can_train_no_more_end(
    first: Path, start: Start, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are held, as where each alone has the state of its model. Then another node of each is no longer
    heard, as after a cut cable, and the rank here lives: it ends when room is made, or its trainer closes."""
    monkeypatch.setattr(kept_ranks, "training_device", lambda: torch.device("cuda"))
    with KeptRanks() as kept:
        begun = kept_by(kept, start(first / "llama"))
        policy, extractor = (Fsdp2Trainer(1, begun, sleeps=True) for _ in range(2))
        for each in (policy, policy, extractor, policy):
            each.logprobs(ROWS, 12)
        assert orders.done == ["begin", "score", "score", "sleep", "begin", "score", "sleep", "score"]
        assert len(orders.groups) == 2

        for trainer, end in ((policy, kept.make_room), (extractor, extractor.close)):
            assert trainer._group is not None
            [process] = trainer._group.process_ids.values()
            trainer._group._nodes = [_OtherNode("far", heard=time.monotonic() - 60)]
            assert not trainer.lasts()
            assert is_there(process)
            end()
            assert not is_there(process)


@pytest.mark.usefixtures("quick_ranks")
def test_two_nodes_give_the_bytes_of_one_and_stay_from_training_to_training(
    ranks: RankGroup,
    node: Node,
    first: Path,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders = Orders(monkeypatch)
    joined = node.said.count("has joined")
    beginning = start(first / "llama", dtype="bfloat16")
    steps: dict[str, list[float]] = {"one": [], "two": []}
    scores = {}
    with KeptRanks() as kept:
        begun = kept_by(kept, beginning)
        trainers = {"one": on_two(beginning, ranks), "two": TRAINER.open(node.settings(), begun)}
        for name, trainer in trainers.items():
            trainer.reinforce(reinforcement(epochs=2), partial(keep, steps[name]))
            trainer.fine_tune_supervised(SUPERVISED)
            scores[name] = np.concatenate(trainer.logprobs(ROWS, 12)).tolist()
            trainer.save(tmp_path / name)
        trainers["two"].close()
        assert "Starts ranks [1] of 2" in node.said
        assert len(steps["two"]) == 2
        assert steps["two"] == steps["one"]
        assert scores["two"] == scores["one"]
        assert_equal(tmp_path / "one", tmp_path / "two")

        assert trainers["two"].lasts()
        begins = orders.done.count("begin")
        again = TRAINER.open(node.settings(), begun)
        again.logprobs(ROWS, 12)
        again.close()
        assert again.lasts()
        assert orders.done.count("begin") == begins + 1
        assert len(node.ranks) == 1
        assert node.said.count("has joined") == joined + 1
    wait_for("the end of its rank", lambda: not node.ranks)
