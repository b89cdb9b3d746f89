"""What an evaluation depends on."""

from __future__ import annotations

from erl_pipeline.plan.sources import read_sources
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from tests.erl_pipeline.runs.small_runs import small


def test_without_agents_no_recipe_says_what_is_kept_of_their_attempts() -> None:
    config = small()
    assert EVALUATE.slice is not None
    settings = EVALUATE.slice(config, read_sources(config)).model_dump(mode="json")
    assert settings.keys() == {"play", "samples_per_task", "whole_episodes"}
