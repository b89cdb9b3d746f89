"""Disk space of a plan, with sums that can be checked by hand."""

from __future__ import annotations

import pytest

from erl_pipeline.runs.disk_sizes import ArtifactSize, forecast_disk
from storage.upkeep.rules import Kept, parse_rule
from tests.erl_pipeline.plan.test_forecast import plan_of

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


def test_with_a_lag_older_checkpoints_stay_too() -> None:
    disk = forecast_disk(plan_of(4).nodes, SIZES, {"checkpoints": parse_rule("1")}, lag=2)
    assert disk.removed == 10.0


def test_stages_that_are_not_known_are_named() -> None:
    sizes = {"begin": ArtifactSize(10.0, estimated=True), "train": SIZES["train"]}
    disk = forecast_disk(plan_of(1).nodes, sizes, {})
    assert (disk.peak, disk.unknown, disk.estimated) == (41.0, ("tasks", "shard"), ("begin",))
