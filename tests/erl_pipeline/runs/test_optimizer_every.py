"""Runs whose optimizer state is not committed with every checkpoint end with the same bytes, whether it stays
in memory or the updates are repeated."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.audit import audit
from erl_pipeline.runs.origins import begin_branch
from erl_pipeline.runs.retention import needed_to_go_on
from erl_pipeline.runs.train import require_repeatable, require_state_stays
from storage.artifacts.manifest import MANIFEST
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, NotRepeated
from storage.filesystem import sha256_file
from storage.runs.documents import BranchOrigin
from storage.runs.run import RunStore
from storage.upkeep.retention import plan_retention, retain
from storage.upkeep.rules import Kept, RetentionRule, parse_rule
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import DECOUPLED, go, hashes, ids, small
from tests.erl_pipeline.runs.test_two_models import METHOD, save_model

WEIGHTS, OPTIMIZER, STEPS = "model/model.safetensors", "optimizer.safetensors", "optimizer.json"
TRAINED = ("update_policy", "fine_tune")


def one(**changes: Any) -> RunConfig:
    """A small run whose updates take steps, since entropy is rewarded, which needs no advantage. Every
    checkpoint has its state."""
    objective = {"advantages_per": "group", "entropy_coefficient": 0.1, **changes.pop("objective", {})}
    return small(objective=objective, **changes)


def every(number: int, **changes: Any) -> RunConfig:
    """The same with the states of each `number`-th iteration."""
    return one(retention={"optimizer_every": number, **changes.pop("retention", {})}, **changes)


def without_states(store: Path, run: str = "small") -> dict[str, dict[str, str]]:
    """The digests of a run's files, without those of optimizer states."""
    return {
        artifact_id: {name: digest for name, digest in files.items() if name != OPTIMIZER}
        for artifact_id, files in hashes(store, run).items()
    }


def with_state(store: Path, run: str = "small") -> list[tuple[int, str]]:
    """The places of a run's checkpoints that have an optimizer state."""
    found = hashes(store, run)
    return sorted(
        (place.iteration, place.stage)
        for place, artifact_id in ids(store, run).items()
        if OPTIMIZER in found[artifact_id]
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six iterations, each checkpoint with its state."""
    store = tmp_path_factory.mktemp("whole")
    go(one(), store, 6)
    return store


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped after the update of iteration 6; the last committed state is that of iteration 4."""
    store = tmp_path_factory.mktemp("stopped")
    assert go(every(4), store, 6, stop_after="update_policy of iteration 6").warnings == []
    return store


@pytest.fixture
def four(tmp_path: Path, stopped: Path) -> Path:
    """A copy of the stopped run's store."""
    return shutil.copytree(stopped, tmp_path / "four")


def test_the_weights_of_every_iteration_are_the_same_without_the_states(four: Path, whole: Path) -> None:
    before, now = without_states(whole), without_states(four)
    assert all(before[artifact_id] == files for artifact_id, files in now.items())
    assert with_state(four) == [(4, "fine_tune")]
    assert sum(STEPS in files for files in now.values()) == 11  # of six updates and five fine-tunings
    assert verify_run(ArtifactStore(str(four)), RunStore(str(four)).open("small")).problems == []
    # An update without a step would have the weights of its input.
    assert len({files[WEIGHTS] for files in now.values() if STEPS in files}) > 5


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["all weights", "adapter"])
def test_two_models_keep_their_states_in_one_process(tmp_path: Path, lora: dict[str, Any] | None) -> None:
    """In bf16 the state holds master weights too. Policy and extractor are sampled and trained in turns."""
    policy = {
        "type": "pretrained",
        "model": str(save_model(tmp_path / "base")),
        "dtype": "bfloat16",
        "lora": lora,
    }
    changes: dict[str, Any] = {"method": METHOD, "policy": policy, "optimizer": {"learning_rate": 0.01}}
    go(one(**changes), tmp_path / "1", 3)
    last = ids(tmp_path / "1")[StageKey(3, "update_policy", "")]
    assert ArtifactStore(str(tmp_path / "1")).open(last).manifest.counters["optimizer_steps"] > 0
    assert go(every(4, **changes), tmp_path / "4", 3).warnings == []
    assert without_states(tmp_path / "4") == without_states(tmp_path / "1")
    assert with_state(tmp_path / "4") == [(3, "update_extractor"), (3, "update_policy")]
    stopped = tmp_path / "stopped"
    assert go(every(4, **changes), stopped, 3, stop_after="extract_experience of iteration 3").warnings == []
    notes = go(every(4, **changes), stopped, 3)
    assert sum(warning.startswith("2 updates repeated") for warning in notes.warnings) == 2
    assert without_states(stopped) == without_states(tmp_path / "1")


def test_with_a_lag_the_state_stays_while_an_older_policy_is_sampled(tmp_path: Path) -> None:
    changes = {"pipeline": {"lag": 1}, **DECOUPLED}
    go(one(**changes), tmp_path / "1", 3)
    assert go(every(4, **changes), tmp_path / "4", 3).warnings == []
    assert without_states(tmp_path / "4") == without_states(tmp_path / "1")


def test_a_new_process_repeats_what_came_after_the_last_state(four: Path, whole: Path) -> None:
    notes = go(every(4), four, 6)
    assert notes.made[:2] == ["build_distillation of iteration 6", "fine_tune of iteration 6"]
    needs, repeated = notes.warnings
    lacking = ids(four)[StageKey(6, "update_policy", "")]
    assert needs == (
        "fine_tune of iteration 6 needs the state of the optimizer: optimizer.safetensors of update_policy "
        f"of iteration 6 ({lacking}) was not committed (retention.optimizer_every). 3 updates will be "
        "repeated from committed rollouts."
    )
    assert repeated == (
        "3 updates repeated from committed rollouts, from update_policy of iteration 5 to update_policy of "
        "iteration 6, and all gave the committed digests."
    )
    assert without_states(four) == without_states(whole)
    assert with_state(four) == [(4, "fine_tune"), (6, "fine_tune")]
    last = ids(four)[StageKey(6, "fine_tune", "")]
    assert hashes(four)[last][OPTIMIZER] == hashes(whole)[last][OPTIMIZER]


def test_a_finished_run_goes_on_from_its_last_state(tmp_path: Path, whole: Path) -> None:
    store = tmp_path / "store"
    assert go(every(4), store, 3).warnings == []
    assert go(every(4), store, 6).warnings == []
    assert with_state(store) == [(3, "fine_tune"), (4, "fine_tune"), (6, "fine_tune")]
    before, now = without_states(whole), without_states(store)
    assert all(now[artifact_id] == files for artifact_id, files in before.items())


def test_a_repeated_update_that_differs_stops_the_run_at_its_tensor(four: Path) -> None:
    """The committed weights of the fine-tuning of iteration 5 are replaced by others, with their digest."""
    artifacts = ArtifactStore(str(four))
    manifest = artifacts.open(ids(four)[StageKey(5, "fine_tune", "")]).manifest
    folder = four / "artifacts/fine_tune" / manifest.artifact_id
    tensors = load_file(folder / WEIGHTS)
    name = sorted(tensors)[3]
    tensors[name].view(-1)[7] += 0.5
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    files = [
        entry.model_copy(update={"sha256": sha256_file(folder / WEIGHTS)}) if entry.path == WEIGHTS else entry
        for entry in manifest.files
    ]
    (folder / MANIFEST).write_bytes(manifest.model_copy(update={"files": files}).document())
    count = f"1 of {tensors[name].numel():,} numbers differ, by up to 0.5"
    with pytest.raises(
        NotRepeated, match=f"fine_tune of iteration 5 was repeated.*at tensor {name}: {count}"
    ):
        go(every(4), four, 6)


def test_a_damaged_rollout_is_made_again_before_its_update_is_repeated(four: Path, whole: Path) -> None:
    shard = ids(four)[StageKey(5, "rollout_shard", "0000")]
    file = four / "artifacts/rollout_shard" / shard / "trajectories.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    notes = go(every(4), four, 6)
    assert "rollout_shard 0000 of iteration 5" in notes.made
    assert "3 updates repeated" in notes.warnings[-1]
    assert without_states(four) == without_states(whole)


def test_weights_that_are_made_again_get_no_state(four: Path, whole: Path) -> None:
    """The update of iteration 3 is damaged by hand: its maker needs the state of two iterations before."""
    lost = ids(four)[StageKey(3, "update_policy", "")]
    file = four / "artifacts/update_policy" / lost / WEIGHTS
    file.write_bytes(file.read_bytes()[:-1])
    notes = go(every(4), four, 6, check=True)
    assert "update_policy of iteration 3" in notes.made
    assert without_states(four) == without_states(whole)
    assert with_state(four) == [(4, "fine_tune"), (6, "fine_tune")]


def test_retention_by_hand_keeps_what_a_repetition_reads(four: Path, whole: Path) -> None:
    store = ArtifactStore(str(four))
    rules: dict[Kept, RetentionRule] = {
        kind: parse_rule("1") for kind in ("checkpoints", "optimizer", "trajectories")
    }
    by_rules_alone = plan_retention(store.uri, rules)
    assert (5, "rollout_shard") in {(each.manifest.iteration, each.manifest.stage) for each in by_rules_alone}
    retain(store.uri, rules, None, lambda name: needed_to_go_on(store, RunStore(store.uri).open(name)))
    lost = {
        (place.iteration, place.stage)
        for place, artifact_id in ids(four).items()
        if store.open(artifact_id).pruned.files
    }
    assert {iteration for iteration, _ in lost} == {1, 2, 3, 4}
    assert (4, "fine_tune") not in lost
    _, repeated = go(every(4), four, 6).warnings
    assert repeated.startswith("3 updates repeated")
    assert without_states(four) == without_states(whole)


def test_retention_keeps_what_a_repetition_reads(tmp_path: Path, whole: Path) -> None:
    rules = {"checkpoints": 1, "optimizer": 1, "trajectories": 1}
    store = tmp_path / "store"
    go(every(4, retention=rules), store, 6, stop_after="fine_tune of iteration 5")
    notes = go(every(4, retention=rules), store, 7)
    assert notes.warnings[-1].startswith("2 updates repeated")
    assert not any(title.startswith("rollout_shard") and "iteration 5" in title for title in notes.made)
    before, now = without_states(whole), without_states(store)
    assert all(now[artifact_id] == files for artifact_id, files in before.items())


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        (
            "generate_rollouts",
            {"rollouts": {"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 1}},
        ),
        ("update_policy", {"optimizer": {"learning_rate": 0.01}}),
    ],
)
def test_a_branch_repeats_the_updates_of_the_run_that_it_begins_from(
    four: Path, whole: Path, stage: str, changes: dict[str, Any]
) -> None:
    """With other settings of the optimizer the state goes through a temporary file."""
    origin = BranchOrigin(run="small", iteration=6, stage=stage)
    name = f"from-{stage}"
    branch = every(4, name=name, **changes)
    notes = go(branch, four, 6, begin=lambda opened: begin_branch(opened, origin))
    assert "update_policy of iteration 6" in notes.made
    assert notes.warnings[-1] == (
        "2 updates repeated from committed rollouts, from update_policy of iteration 5 to fine_tune of "
        "iteration 5, and all gave the committed digests."
    )
    assert list((four / "staging").iterdir()) == []
    go(one(name=name, **changes), whole, 6, begin=lambda opened: begin_branch(opened, origin))
    assert without_states(four, name) == without_states(whole, name)


def test_an_audit_repeats_too(four: Path, tmp_path: Path) -> None:
    results = audit(
        str(four), "small", 5, "update_policy", 5, tmp_path / "scratch", Listener(), threading.Event()
    )
    assert {each.stage: each.verdict for each in results if each.stage in TRAINED} == dict.fromkeys(
        TRAINED, "equal"
    )


def test_a_run_on_a_device_that_repeats_no_bytes_is_refused() -> None:
    require_repeatable(8, torch.device("cpu"))
    sharded = every(8, trainer={"type": "fsdp2", "processes": 2})
    require_state_stays(sharded, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"trainer\.type: fsdp2 on GPUs is 1, since its processes end"):
        require_state_stays(sharded, torch.device("cuda"))
    with pytest.raises(
        ConfigError, match="optimizer_every: 8; allowed on this machine is 1, since an update"
    ):
        require_repeatable(8, torch.device("cuda"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"trainer": {"type": "fsdp2", "processes": 2, "nodes": 2, "address": "10.0.0.1:29500"}},
            "a trainer on several machines is 1, since they hold",
        ),
        ({"resources": {"devices": 2}}, "resources.devices: 2 is 1, since each device has a process"),
        ({"runner": {"type": "ray"}}, "runner.type: ray is 1, since its workers are on other machines"),
    ],
)
def test_a_run_whose_process_does_not_keep_the_state_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"retention.optimizer_every: 4; allowed with {reason}"):
        every(4, **changes)
