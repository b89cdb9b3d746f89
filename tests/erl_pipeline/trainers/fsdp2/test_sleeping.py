"""Ranks that leave their device to others and come back: the same tensors, the same bytes."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from erl_pipeline.network import listen
from erl_pipeline.trainers.fsdp2 import kept_ranks
from erl_pipeline.trainers.fsdp2.launcher import DETERMINISTIC_VARIABLE, TIMEOUT_VARIABLE
from erl_pipeline.trainers.fsdp2.learner import RankLearner
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.sharding import join_ranks, own_rows
from erl_pipeline.trainers.fsdp2.sleeping import SleepingTensors
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.fsdp2.work import Begin, Reinforce, Sleep
from tests import forked
from tests.erl_pipeline.runs.small_runs import go, hashes
from tests.erl_pipeline.trainers.fsdp2.orders import Orders
from tests.erl_pipeline.trainers.fsdp2.rows import Start, reinforcement
from tests.erl_pipeline.trainers.fsdp2.sharded import sharded
from tests.erl_pipeline.trainers.fsdp2.test_trainer import assert_equal

CPU = torch.device("cpu")


def test_tensors_give_up_their_memory_and_still_share_it_afterwards() -> None:
    whole = torch.arange(6, dtype=torch.float32)
    row, other = whole[3:].view(1, 3), torch.ones(2, dtype=torch.bfloat16)
    sleeping = SleepingTensors(CPU)
    for _ in range(2):
        sleeping.sleep([whole, row, other, torch.empty(0)])
        sleeping.sleep([whole, row, other])
        assert (whole.untyped_storage().nbytes(), other.untyped_storage().nbytes()) == (0, 0)
        sleeping.wake()
        sleeping.wake()
        assert whole.tolist() == [0, 1, 2, 3, 4, 5]
        assert other.tolist() == [1, 1]
        assert row.data_ptr() == whole[3:].data_ptr()
        row += 1
        assert whole.tolist() == [0, 1, 2, 4, 5, 6]
        row -= 1


def test_what_is_on_another_device_stays() -> None:
    tensor = torch.ones(2)
    sleeping = SleepingTensors(torch.device("meta"))
    sleeping.sleep([tensor])
    assert tensor.tolist() == [1, 1]


def largest_after_sleep(begin: Begin, port: int) -> int:
    """Update a policy as the only rank, and sleep; returns how many bytes the largest tensor then has."""
    os.environ |= {
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        **{DETERMINISTIC_VARIABLE: "0", TIMEOUT_VARIABLE: "60"},
    }
    learner, work = RankLearner(begin, join_ranks()), reinforcement()
    told = Reinforce(work.objective, work.update, work.seed, None, None)
    learner.reinforce(told, work.sequences, lambda _step, _loss: None)
    learner.sleep()
    copies = {copy.data_ptr() for copy in learner._sleeping._copies}
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    there = [(own_rows(each) if isinstance(each, DTensor) else each).untyped_storage() for each in tensors]
    return max(each.nbytes() for each in there if each.data_ptr() not in copies)


def test_nothing_of_a_model_stays_on_the_device(first: Path, start: Start) -> None:
    """FSDP keeps tensors of its own, which share the storages that are emptied. The smallest weight has 36
    numbers."""
    begun = start(first / "llama", dtype="bfloat16")
    assert begun.context is not None
    begin = Begin(begun.context.stored, begun.checkpoint, begun.optimizer)
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
    assert forked.call(f"{__name__}:largest_after_sleep", begin, port) < 36


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_after_sleep_is_that_without(
    dtype: str, ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    for name, sleeps in (("awake", False), ("slept", True)):
        trainer = Fsdp2Trainer(2, start(first / "llama", dtype=dtype), ranks)
        trainer.reinforce(reinforcement())
        if sleeps:
            ranks.do(Sleep())
            ranks.do(Sleep())
        trainer.reinforce(reinforcement())
        if sleeps:
            ranks.do(Sleep())
        trainer.save(tmp_path / name)
    assert_equal(tmp_path / "awake", tmp_path / "slept")


def test_runs_whose_ranks_sleep_or_write_beside_their_stages_load_once_and_have_the_same_bytes(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two iterations have four training stages, and each is sampled from. The ranks that sleep are on GPUs
    that sampling needs too, and write their states before a stage ends."""
    go(sharded(2, store={"background_commit_mb": 0}), tmp_path / "beside", 2)
    assert (orders.done.count("begin"), len(orders.groups), orders.done.count("begin_state")) == (1, 1, 4)
    orders.done.clear()
    orders.groups.clear()
    monkeypatch.setattr(kept_ranks, "training_device", lambda: torch.device("cuda"))
    go(sharded(2, sleep=True, store={"background_commit_mb": None}), tmp_path / "sleep", 2)
    assert orders.done.count("sleep") > 0
    assert (orders.done.count("begin"), len(orders.groups), orders.done.count("begin_state")) == (1, 1, 0)
    assert hashes(tmp_path / "sleep") == hashes(tmp_path / "beside")
