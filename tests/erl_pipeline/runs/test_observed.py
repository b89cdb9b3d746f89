"""A small run whose policy also learns to predict what the environment says."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.trainers.sequences import observed_sequence
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.tables.training import TRAINING_RECORD_FILE
from tests.erl_pipeline.episodes.script import play
from tests.erl_pipeline.runs.small_runs import SMALL, go, ids, small


def test_what_the_environment_said_between_two_turns_is_predicted() -> None:
    """up d <end> | <user> bump c0 <assistant> | right a <end> | ...: the mask is turned around."""
    [row], _ = play(["up d", "right a", "right a"])
    sequence = observed_sequence(row, 0.25)
    assert sequence is not None
    assert sequence.response_mask == (0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0)
    assert (sequence.role, sequence.weight, sequence.advantage) == ("observed", 0.25, 1.0)


def test_an_attempt_of_one_turn_has_nothing_to_predict() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    assert observed_sequence(rows[0], 1.0) is None
    assert observed_sequence(rows[1], 1.0) is None


def test_a_run_counts_them_and_records_each_trajectory_once(tmp_path: Path) -> None:
    objective = {**SMALL["objective"], "observation_coefficient": 0.5}
    go(small(objective=objective, iterations=1), tmp_path)
    places, artifacts = ids(tmp_path), ArtifactStore(str(tmp_path))
    update = artifacts.open(places[StageKey(1, "update_policy", "")])
    rows = pl.concat(
        pl.read_parquet(artifacts.open(made).path("trajectories.parquet"))
        for place, made in places.items()
        if place.stage == "rollout_shard"
    )
    several = rows.filter(pl.col("response_mask").list.contains(0))
    assert update.manifest.counters["observed_sequences"] == several.height > 0
    record = pl.read_parquet(update.path(TRAINING_RECORD_FILE))
    assert sorted(record["trajectory_id"]) == sorted(rows["trajectory_id"])


def test_turns_that_are_played_again_are_no_observations() -> None:
    with pytest.raises(ConfigError, match="would also train what the policy said"):
        small(
            method={"type": "erl", "retry_from": "named_turn"},
            objective={**SMALL["objective"], "observation_coefficient": 0.5},
        )
