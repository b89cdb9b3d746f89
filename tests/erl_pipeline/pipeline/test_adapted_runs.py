"""Whole runs whose checkpoints are adapters of a base that is committed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from erl_pipeline.pipeline.train import TrainingSummary
from erl_pipeline.policies.adapters import SETTINGS, WEIGHTS, without_adapter
from erl_pipeline.policies.checkpoints import checkpoint_parts, load_checkpoint
from erl_pipeline.policies.pretrained import load_policy
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.pipeline.adapted_runs import config, run, save_base

MODEL_FILES = {f"model/{WEIGHTS}", f"model/{SETTINGS}", "optimizer.safetensors", "optimizer.json"}


@dataclass(frozen=True)
class Finished:
    """A run of two iterations."""

    base: Path
    store: Path
    summary: TrainingSummary

    def checkpoints(self, name: str = "adapted") -> list[str]:
        """Artifact ids, the base first."""
        entries = RunStore(str(self.store)).open(name).stages()
        stages = ("bootstrap", "update_policy", "fine_tune")
        return [entry.artifact_id for entry in entries if entry.stage in stages]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("adapted")
    base = save_base(folder / "base")
    return Finished(base, folder / "store", run(config(base), folder / "store"))


def test_checkpoints_hold_the_adapter_alone_and_name_their_base(finished: Finished) -> None:
    store = ArtifactStore(str(finished.store))
    base_id, *adapted = finished.checkpoints()
    assert len(adapted) == 4
    for artifact_id in adapted:
        checkpoint = store.open(artifact_id)
        assert {entry.path for entry in checkpoint.files} == MODEL_FILES
        assert checkpoint.manifest.inputs["base"] == base_id
        assert checkpoint.manifest.recipe.artifact_id == artifact_id
        names = load_file(checkpoint.path(f"model/{WEIGHTS}"))
        # Two layers with seven matrices, each with A and B.
        assert len(names) == 2 * 7 * 2
    assert verify_run(store, RunStore(str(finished.store)).open("adapted")).problems == []


def test_training_changes_the_adapter_and_no_bit_of_the_base(finished: Finished) -> None:
    store = ArtifactStore(str(finished.store))
    first, *_, last = finished.checkpoints()
    base = load_policy(finished.base).model.state_dict()
    loaded = load_checkpoint(store, last, config(finished.base)).model
    with without_adapter(loaded):
        kept = {name.replace(".base_layer", ""): tensor for name, tensor in loaded.state_dict().items()}
    assert set(base) <= set(kept)
    assert all(torch.equal(kept[name], tensor) for name, tensor in base.items())
    adapter = load_file(checkpoint_parts(store, last).adapter_folder / WEIGHTS)  # type: ignore[operator]
    assert all(tensor.abs().max() > 0 for tensor in adapter.values())
    assert checkpoint_parts(store, first).adapter_folder is None


def test_a_run_that_trains_all_weights_cannot_go_on_from_an_adapter(finished: Finished) -> None:
    settings = config(finished.base, policy={"type": "pretrained", "model": str(finished.base)})
    with pytest.raises(ConfigError, match=r"is an adapter; without policy.lora no run goes on from it"):
        load_checkpoint(ArtifactStore(str(finished.store)), finished.checkpoints()[-1], settings)


def test_a_run_that_was_left_and_continued_has_equal_bytes(finished: Finished, tmp_path: Path) -> None:
    """The second iteration reads the adapter and its optimizer from the store, not from memory."""
    run(config(finished.base, iterations=1), tmp_path)
    run(config(finished.base), tmp_path)
    one, other = ArtifactStore(str(finished.store)), ArtifactStore(str(tmp_path))
    for artifact_id in finished.checkpoints():
        hashes = [{entry.path: entry.sha256 for entry in s.open(artifact_id).files} for s in (one, other)]
        assert hashes[0] == hashes[1]


def test_another_rank_shares_the_base_and_the_first_rollouts_but_no_checkpoint(finished: Finished) -> None:
    policy = {"type": "pretrained", "model": str(finished.base), "lora": {"rank": 2}}
    run(config(finished.base, name="rank-2", policy=policy, iterations=1), finished.store)
    ours, theirs = finished.checkpoints(), finished.checkpoints("rank-2")
    assert ours[0] == theirs[0]
    assert not set(ours[1:]) & set(theirs[1:])
    shards = [
        [
            entry.artifact_id
            for entry in RunStore(str(finished.store)).open(name).stages()
            if (entry.stage, entry.iteration) == ("rollout_shard", 1)
        ]
        for name in ("adapted", "rank-2")
    ]
    assert shards[0] == shards[1]
    assert len(shards[0]) == 2


def test_the_kl_term_refers_to_the_base(finished: Finished) -> None:
    """One step from the base moves nothing away from it yet; in the second iteration there is a distance."""
    objective = {"kl_coefficient": 0.1, "kl_estimator": "k3", "entropy_coefficient": 0.1}
    settings = config(finished.base, name="kl", objective=objective, distillation=False)
    run(settings, finished.store)
    store = ArtifactStore(str(finished.store))
    base_id, first, second = finished.checkpoints("kl")
    assert store.open(first).manifest.inputs["reference"] == base_id
    assert store.open(first).manifest.metrics["kl_loss"] == pytest.approx(0.0, abs=1e-9)
    assert store.open(second).manifest.metrics["kl_loss"] > 1e-4
