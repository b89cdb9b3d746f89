"""Whole runs whose checkpoints are adapters of a base that is committed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.adapter_names import SETTINGS, WEIGHTS
from erl_pipeline.policies.adapters import without_adapter
from erl_pipeline.policies.checkpoints import load_checkpoint, stored_parts, weights_settings
from erl_pipeline.policies.pretrained import load_policy
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.adapted_runs import config, save_base
from tests.erl_pipeline.runs.small_runs import go, hashes, ids

CHECKPOINT_FILES = {
    f"model/{WEIGHTS}",
    f"model/{SETTINGS}",
    "optimizer.safetensors",
    "optimizer.json",
    "probe.safetensors",
    "training_record.parquet",
}


@dataclass(frozen=True)
class Finished:
    """A run of two iterations."""

    base: Path
    store: Path

    def checkpoints(self, name: str = "adapted") -> list[str]:
        """Artifact ids, the base first."""
        stages = ("bootstrap", "update_policy", "fine_tune")
        return [made for place, made in ids(self.store, name).items() if place.stage in stages]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("adapted")
    base = save_base(folder / "base")
    go(config(base), folder / "store")
    return Finished(base, folder / "store")


def test_checkpoints_hold_the_adapter_alone_and_name_their_base(finished: Finished) -> None:
    store = ArtifactStore(str(finished.store))
    base_id, *adapted = finished.checkpoints()
    assert len(adapted) == 4
    for artifact_id in adapted:
        checkpoint = store.open(artifact_id)
        assert {entry.path for entry in checkpoint.files} == CHECKPOINT_FILES
        assert checkpoint.manifest.inputs["base"] == base_id
    assert verify_run(store, RunStore(str(finished.store)).open("adapted")).problems == []


def test_training_changes_the_adapter_and_no_bit_of_the_base(finished: Finished) -> None:
    store = ArtifactStore(str(finished.store))
    first, *_, last = finished.checkpoints()
    base = load_policy(finished.base).model.state_dict()
    loaded = load_checkpoint(stored_parts(store, last), weights_settings(config(finished.base))).model
    with without_adapter(loaded):
        kept = {name.replace(".base_layer", ""): tensor for name, tensor in loaded.state_dict().items()}
    assert set(base) <= set(kept)
    assert all(torch.equal(kept[name], tensor) for name, tensor in base.items())
    adapter_folder = stored_parts(store, last).adapter_folder
    assert adapter_folder is not None
    adapter = load_file(adapter_folder / WEIGHTS)
    assert all(tensor.abs().max() > 0 for tensor in adapter.values())
    assert stored_parts(store, first).adapter_folder is None


def test_a_run_that_trains_all_weights_cannot_go_on_from_an_adapter(finished: Finished) -> None:
    weights = weights_settings(config(finished.base)).model_copy(update={"lora": None, "adapter_seed": None})
    parts = stored_parts(ArtifactStore(str(finished.store)), finished.checkpoints()[-1])
    with pytest.raises(ConfigError, match=r"is an adapter; without policy\.lora no run can continue from it"):
        load_checkpoint(parts, weights)


def test_a_run_that_was_left_and_continued_has_equal_bytes(finished: Finished, tmp_path: Path) -> None:
    """The second iteration reads the adapter and its optimizer from the store, not from memory."""
    go(config(finished.base), tmp_path, 1)
    go(config(finished.base), tmp_path, 2)
    assert finished.checkpoints()[1:] == [
        made
        for place, made in ids(tmp_path, "adapted").items()
        if place.stage in ("update_policy", "fine_tune")
    ]
    assert hashes(finished.store, "adapted").items() <= hashes(tmp_path, "adapted").items()


def test_another_rank_shares_the_base_and_no_checkpoint(finished: Finished) -> None:
    lora = LoraConfig(rank=2)
    policy = config(finished.base).policy.model_copy(update={"lora": lora}).model_dump()
    go(config(finished.base, name="rank-2", policy=policy, iterations=1), finished.store)
    ours, theirs = finished.checkpoints(), finished.checkpoints("rank-2")
    assert ours[0] == theirs[0]
    assert not set(ours[1:]) & set(theirs[1:])


def test_the_kl_term_refers_to_the_base(finished: Finished) -> None:
    """One step from the base moves nothing away from it yet; in the second iteration there is a distance."""
    objective = {"kl_coefficient": 0.1, "kl_estimator": "k3", "entropy_coefficient": 1.0}
    method = {"type": "erl", "memory": False}
    given = {"objective": objective, "method": method, "distillation": False}
    go(config(finished.base, name="kl", **given), finished.store)
    store = ArtifactStore(str(finished.store))
    base_id, first, second = finished.checkpoints("kl")
    assert store.open(first).manifest.inputs["reference"] == base_id
    assert store.open(first).manifest.metrics["kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert store.open(second).manifest.metrics["kl_loss"] > 1e-6
