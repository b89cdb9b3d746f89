"""Checkpoints of several files: the same bytes from two ranks, from one, and from the local trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies import checkpoint_files
from erl_pipeline.policies.checkpoint_files import deal_to_files
from erl_pipeline.policies.pretrained import load_policy
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.shared_files import header, in_file_order, shared_weight
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.fsdp2.work import Save
from erl_pipeline.trainers.local.trainer import LocalTrainer
from storage.errors import InputError
from tests.erl_pipeline.trainers.fsdp2.rows import Start, reinforcement
from tests.erl_pipeline.trainers.fsdp2.test_trainer import assert_equal, files


def test_tensors_are_dealt_in_order_to_files_that_are_not_too_large() -> None:
    sizes = {"a": 4, "b": 5, "c": 12, "d": 1, "e": 8}
    assert deal_to_files(sizes, "x", 30) == {"x.safetensors": ["a", "b", "c", "d", "e"]}
    # The largest gets a file of its own at once, between those of the others.
    assert deal_to_files(sizes, "x", 10) == {
        "x-00001-of-00003.safetensors": ["c"],
        "x-00002-of-00003.safetensors": ["a", "b", "d"],
        "x-00003-of-00003.safetensors": ["e"],
    }
    assert deal_to_files({}, "x", 10) == {"x.safetensors": []}


def test_a_header_is_that_of_safetensors(tmp_path: Path) -> None:
    tensors = {
        "b": torch.zeros(2, 3),
        "ä": torch.zeros((), dtype=torch.int64),
        "c": torch.zeros(3, dtype=torch.bfloat16),
        "a": torch.zeros(5),
        "d": torch.zeros(3, dtype=torch.bool),
        "e": torch.zeros(1, dtype=torch.float64),
        "f": torch.zeros(1, dtype=torch.float16),
        "g": torch.zeros(1, dtype=torch.int32),
        "h": torch.zeros(1, dtype=torch.uint8),
    }
    save_file(tensors, tmp_path / "all", {"format": "pt"})
    shared = {name: shared_weight(tensor) for name, tensor in tensors.items()}
    order = in_file_order(shared)
    begun = header({name: shared[name] for name in order}, {"format": "pt"})
    assert (tmp_path / "all").read_bytes().startswith(begun)
    assert begun[8:].decode().strip().endswith("}}")


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_large_checkpoints_have_the_same_files_whoever_writes_them(
    model: str, ranks: RankGroup, first: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 3,000 bytes a file: in bf16 the weights have about 77,000, and the state six times as much."""
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 3_000)
    one = LocalTrainer(start(first / model, dtype="bfloat16"))
    one.reinforce(reinforcement())
    one.save(tmp_path / "local")
    names = [path.name for path in files(tmp_path / "local")]
    weights = [name for name in names if name.startswith("model-")]
    states = [name for name in names if name.startswith("optimizer-")]
    assert len(weights) > 5
    assert len(states) > 15
    assert {"model.safetensors", "optimizer.safetensors"}.isdisjoint(names)
    index = json.loads((tmp_path / "local/model/model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(weights)

    again = start(tmp_path / "local", dtype="bfloat16")
    Fsdp2Trainer(2, again, ranks).save(tmp_path / "two")
    assert_equal(tmp_path / "local", tmp_path / "two")
    LocalTrainer(again).save(tmp_path / "one")
    assert_equal(tmp_path / "local", tmp_path / "one")

    # In one file again, the state is that of before.
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 2_000_000)
    for name, trainer in (("two", Fsdp2Trainer(2, again, ranks)), ("one", LocalTrainer(again))):
        trainer.save(tmp_path / name / "whole")
    assert_equal(tmp_path / "one/whole", tmp_path / "two/whole")
    assert {"model.safetensors", "optimizer.safetensors"} <= {
        path.name for path in files(tmp_path / "one/whole")
    }
    before, now = (load_policy(tmp_path / each / "model").model for each in ("local", "one/whole"))
    assert all(torch.equal(now.state_dict()[name], value) for name, value in before.state_dict().items())

    next((tmp_path / "local").glob("optimizer-00002-of-*")).unlink()
    with pytest.raises(InputError, match=rf"it has {len(states) - 1} of the files optimizer\*\.safetensors"):
        LocalTrainer(again).reinforce(reinforcement())


@pytest.mark.usefixtures("quick_ranks")
def test_ranks_of_one_process_write_the_same_files(
    first: Path, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also an adapter, whose weights are in one file and whose state is not."""
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 3_000)
    group = RankGroup(1, 1, tmp_path / "scratch")
    try:
        for name, lora in (("all", None), ("adapter", LoraConfig(rank=1, alpha=2))):
            trainer = LocalTrainer(start(first / "llama", base=first / "llama", lora=lora))
            trainer.reinforce(reinforcement())
            trainer.save(tmp_path / "local" / name)
            base = tmp_path / "local" / name if lora is None else first / "llama"
            again = start(tmp_path / "local" / name, base=base, lora=lora)
            Fsdp2Trainer(1, again, group).save(tmp_path / "one" / name)
            assert_equal(tmp_path / "local" / name, tmp_path / "one" / name)
    finally:
        group.end()
    assert len(list((tmp_path / "one/adapter").glob("optimizer-*-of-*.safetensors"))) > 1
    assert len(list((tmp_path / "one/adapter/model").glob("*.safetensors"))) == 1
    assert Save(tmp_path).file_bytes == 2_000_000_000
