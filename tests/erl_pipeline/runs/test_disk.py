"""Sizes of artifacts, what a plan takes on the disk, and the prediction of a full disk."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.disk import bytes_of, estimate_checkpoints, forecast_disk, trained_size
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.store_lookups import ArtifactSize
from storage.errors import StoreError
from storage.upkeep.rules import Kept, RetentionRule, parse_rule
from tests.erl_pipeline.plan.test_forecast import plan_of
from tests.erl_pipeline.runs.small_runs import Notes, go, ids, small
from tests.erl_pipeline.sizing.test_formulas import SMOLLM2_135M, write

SIZES = {
    "tasks": ArtifactSize(1.0),
    "begin": ArtifactSize(10.0, {"checkpoints": 10.0}),
    "shard": ArtifactSize(2.0, {"trajectories": 2.0}),
    "train": ArtifactSize(31.0, {"checkpoints": 10.0, "optimizer": 20.0}),
}


def test_without_rules_everything_stays() -> None:
    """11 before the first iteration, then 2 + 2 + 31 in each of four."""
    disk = forecast_disk(plan_of(4).nodes, SIZES, {})
    assert (disk.peak, disk.end, disk.removed) == (151.0, 151.0, 0.0)
    assert (disk.unknown, disk.estimated) == ((), ())


@pytest.mark.parametrize(
    ("rules", "peak", "end", "removed"),
    [
        # After iterations 2, 3 and 4 the optimizer state of the iteration before is removed: 151 - 60 at the
        # end. Before the last removal there were 20 more.
        ({"optimizer": "1"}, 111.0, 91.0, 60.0),
        # Iterations 2 and 4 are kept: 1 is removed after 2, and 3 after 4.
        ({"checkpoints": "every:2"}, 141.0, 131.0, 20.0),
        # The checkpoint that the run began with is kept: 10 of 50.
        ({"checkpoints": "1", "optimizer": "1", "trajectories": "1"}, 11 + 35 + 1 + 1 + 1 + 34, 49.0, 102.0),
    ],
)
def test_rules_remove_old_files_after_each_iteration(
    rules: dict[Kept, str], peak: float, end: float, removed: float
) -> None:
    parsed = {kind: parse_rule(text) for kind, text in rules.items()}
    disk = forecast_disk(plan_of(4).nodes, SIZES, parsed)
    assert (disk.peak, disk.end, disk.removed) == (peak, end, removed)


def test_the_bytes_of_an_iteration_and_when_the_disk_is_full() -> None:
    """11 before the first iteration and 35 in each: after iteration 2 there are 81, after iteration 3 116."""
    disk = forecast_disk(plan_of(4).nodes, SIZES, {}, free=81.0)
    assert (disk.iteration, disk.full_in) == (35.0, 3)
    assert forecast_disk(plan_of(4).nodes, SIZES, {}, free=10.0).full_in == 0
    assert forecast_disk(plan_of(4).nodes, SIZES, {}, free=151.0).full_in is None
    # Without old optimizer states, of 20 each, 96 are there after iteration 3 and 111 after iteration 4.
    rules: dict[Kept, RetentionRule] = {"optimizer": parse_rule("1")}
    assert forecast_disk(plan_of(4).nodes, SIZES, rules, free=100.0).full_in == 4


def test_with_a_lag_older_checkpoints_stay_too() -> None:
    disk = forecast_disk(plan_of(4).nodes, SIZES, {"checkpoints": parse_rule("1")}, lag=2)
    assert disk.removed == 10.0


def test_checkpoints_without_the_state_of_the_optimizer_take_less() -> None:
    """151 without the states, 20 each, of iterations 1 and 3."""
    plan = plan_of(4)
    lacking = {
        node.artifact_id for node in plan.nodes if node.stage.name == "train" and node.place.iteration % 2
    }
    assert forecast_disk(plan.nodes, SIZES, {}, lacking=lacking).end == 111.0
    assert bytes_of(plan.of_iteration(1), SIZES, lacking) == 15.0


def test_stages_that_are_not_known_are_named() -> None:
    sizes = {"begin": ArtifactSize(10.0, estimated=True), "train": SIZES["train"]}
    disk = forecast_disk(plan_of(1).nodes, sizes, {})
    assert (disk.peak, disk.unknown, disk.estimated) == (41.0, ("tasks", "shard"), ("begin",))


def test_fp32_weights_have_their_moments_beside_them() -> None:
    size = trained_size(1000, 4, OptimizerConfig())
    assert (size.bytes, size.retained) == (12_000.0, {"checkpoints": 4000.0, "optimizer": 8000.0})


def test_low_precision_weights_have_an_fp32_copy_too() -> None:
    assert trained_size(1000, 2, OptimizerConfig()).bytes == 14_000.0
    assert trained_size(1000, 2, OptimizerConfig(moments="by_use")).bytes == 22_000.0
    assert trained_size(1000, 2, OptimizerConfig(carry_state=False)).bytes == 6_000.0


def test_a_pretrained_policy_is_counted_by_its_config(tmp_path: Path) -> None:
    """SmolLM2-135M has 134,515,008 weights: 2 bytes each, and with an fp32 copy and moments 14."""
    model = write(SMOLLM2_135M, tmp_path)
    config = small(policy={"type": "pretrained", "model": model, "dtype": "bfloat16"})
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert {name: size.bytes for name, size in sizes.items()} == {
        "bootstrap": 269_030_016.0,
        "update_policy": 1_883_210_112.0,
        "fine_tune": 1_883_210_112.0,
    }
    assert sizes["fine_tune"].retained == {"checkpoints": 269_030_016.0, "optimizer": 1_614_180_096.0}
    (tmp_path / "config.json").unlink()
    assert estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes) == {}


def test_an_averaged_teacher_is_counted_in_fp32_and_with_an_adapter_by_that_alone(tmp_path: Path) -> None:
    """134,515,008 weights have 4 bytes each."""
    model = write(SMOLLM2_135M, tmp_path)
    sizes = []
    for lora in (None, {"rank": 8}):
        policy = {"type": "pretrained", "model": model, "dtype": "bfloat16", "lora": lora}
        config = small(policy=policy, self_distillation={"teacher": "ema"})
        found = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
        sizes.append((found["average_teacher"].bytes, found["update_policy"].retained["checkpoints"]))
    (whole, _), (adapter, trained) = sizes
    assert whole == 538_060_032.0
    assert adapter == 2 * trained > 0


def test_a_tiny_policy_is_counted_by_its_blocks() -> None:
    """One block of width 64: 12 * 64 * 64 + 13 * 64 = 49,984 weights."""
    config = small()
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert {name: size.bytes for name, size in sizes.items()} == {
        "bootstrap": 199_936.0,
        "update_policy": 599_808.0,
        "fine_tune": 599_808.0,
    }


def test_a_warm_start_is_counted_with_all_weights_and_no_optimizer(tmp_path: Path) -> None:
    """An adapter of rank 8 is trained after it; 134,515,008 weights have 2 bytes each."""
    model = write(SMOLLM2_135M, tmp_path)
    policy = {"type": "pretrained", "model": model, "dtype": "bfloat16", "lora": {"rank": 8}}
    policy["warm_start"] = {"type": "messages", "file": "mine.jsonl"}
    config = small(policy=policy)
    sizes = estimate_checkpoints(config, plan_run(config, unread_sources(config)).nodes)
    assert sizes["warm_start"].bytes == sizes["bootstrap"].bytes == 134_515_008 * 2
    assert sizes["update_policy"].bytes < sizes["warm_start"].bytes


Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Set the number of bytes that are reported as free."""
    room = {"bytes": 10**12}
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**12, 0, room["bytes"]))
    return room


def size_of_iteration(store: Path) -> int:
    folders = [
        store / "artifacts" / place.stage / artifact_id
        for place, artifact_id in ids(store).items()
        if place.iteration == 2
    ]
    files = [path for folder in folders for path in folder.rglob("*") if path.name != "manifest.json"]
    return sum(path.stat().st_size for path in files if path.is_file())


def test_a_run_whose_next_iteration_does_not_fit_is_not_begun(store: Path, free: dict[str, int]) -> None:
    free["bytes"] = size_of_iteration(store) // 2
    before = ids(store)
    with pytest.raises(StoreError, match=r"the disk would be full: iteration 3 needs about .* are free at"):
        go(small(), store, 3)
    assert ids(store) == before
    notes = go(small(resources={"threads": 1, "full_disk": "warn"}), store, 3)
    assert notes.warnings[0].startswith("the disk would be full: iteration 3 needs about ")
    assert notes.made


def test_a_run_that_will_not_fit_as_a_whole_is_warned_of(store: Path, free: dict[str, int]) -> None:
    free["bytes"] = size_of_iteration(store) * 2
    (warning,) = go(small(), store, 5).warnings
    assert warning.startswith("the run to iteration 5 needs about ")
    assert "set retention.checkpoints and retention.optimizer" in warning


def test_retention_makes_room(store: Path, free: dict[str, int]) -> None:
    free["bytes"] = size_of_iteration(store) * 2 + 100_000
    assert go(small(retention={"checkpoints": 1, "optimizer": 1}), store, 5).warnings == []


def test_a_disk_that_fills_up_stops_the_run_before_the_next_iteration(
    store: Path, free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(notes: Notes, title: str, outcome: object) -> None:
        if title == "build_distillation of iteration 3":
            free["bytes"] = 1000

    monkeypatch.setattr(Notes, "stage_finished", filled)
    with pytest.raises(StoreError, match="iteration 4 needs about"):
        go(small(), store, 5)
    assert StageKey(3, "fine_tune", "") in ids(store)
