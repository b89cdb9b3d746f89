"""Settings of replay: the paper's defaults, and which settings cannot be combined."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.replay import ReplayConfig, most_replayed
from storage.errors import ConfigError
from tests.erl_pipeline.runs.planned_runs import DECOUPLED, config

REPLAYING = ("method=rlvr", "replay=on")


def test_the_defaults_are_those_of_the_paper() -> None:
    replay = ReplayConfig()
    assert (replay.share, replay.start_success, replay.shaping_beta) == (0.5, 0.35, 0.1)
    assert (replay.buckets.mean, replay.buckets.sigma, replay.buckets.sigma_unit) == (0.5, 1.0, "count")
    assert (replay.pick, replay.entropy, replay.importance, replay.clip) == (
        "lowest", "vocabulary", "behaviour", False,
    )  # fmt: skip
    assert (replay.max_age, replay.max_per_task, replay.weight_cap) == (None, None, None)


def test_a_sampler_brings_what_goes_with_it() -> None:
    assert ReplayConfig(sampler="uniform").pick == "random"
    tiers = ReplayConfig(sampler="tiers")
    assert (tiers.pick, tiers.shaping_beta, tiers.weight_cap) == ("random", None, 5.0)


def test_off_is_a_value_where_it_makes_sense() -> None:
    replay = ReplayConfig.model_validate({"shaping_beta": False, "importance": False})
    assert (replay.shaping_beta, replay.importance) == (None, "off")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sampler": "uniform", "pick": "lowest"}, "pick: lowest; allowed with sampler: uniform is random"),
        ({"weight_cap": 5.0}, "weight_cap: 5; a shaped weight is below 1 already"),
        ({"tiers": {"shares": (0.5, 0.3, 0.15, 0.1)}}, "allowed are shares of at least 0 that add up to 1"),
    ],
)
def test_impossible_settings_of_replay_are_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ReplayConfig.model_validate(values)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["method=complementary"],
            "replay: method complementary cannot be combined",
        ),
        (["rollouts.group_size=1"], "rollouts.group_size: 1; with replay"),
        (["replay.share=0.2"], "replay.share: 0.2 of rollouts.tasks_per_iteration: 4"),
        (
            [DECOUPLED, "pipeline.lag=1", "replay.importance=off"],
            "pipeline.lag: 1; with replay.importance: off nothing corrects",
        ),
        (["pipeline.lag=1"], r"pipeline.lag: 1; allowed with objective.correction.type: bypass is 0"),
    ],
)
def test_a_run_that_cannot_replay_is_refused_and_both_settings_named(settings: list[str], said: str) -> None:
    config(*REPLAYING, *(each for each in settings if each.startswith("objective")))
    with pytest.raises(ConfigError, match=said):
        config(*REPLAYING, *settings)


def test_the_share_is_rounded_down() -> None:
    assert [most_replayed(share, 16) for share in (0.25, 0.5, 0.75, 0.99)] == [4, 8, 12, 15]
    assert most_replayed(0.29, 100) == 29  # in floats 0.29 * 100 is below 29
