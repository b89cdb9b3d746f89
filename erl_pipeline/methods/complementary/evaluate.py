"""The evaluation of held-out first attempts that see experience, beside the one of those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.methods.complementary.settings import ComplementaryConfig, ComplementaryEpisodeSettings
from erl_pipeline.stages.evaluate import EVALUATE, EvaluationSettings
from erl_pipeline.stages.playing import play_settings

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources


def _slice(config: RunConfig, _sources: Sources) -> EvaluationSettings:
    """As in training, but nothing is left to chance: no attempt is free, and the best entry is shown."""
    play = play_settings(config)
    assert isinstance(config.method, ComplementaryConfig)
    assert isinstance(play.episode, ComplementaryEpisodeSettings)
    assert play.retrieval is not None
    return EvaluationSettings(
        play=play.model_copy(
            update={
                "episode": play.episode.model_copy(update={"dropout": 0.0}),
                "retrieval": play.retrieval.model_copy(update={"withhold": 0.0, "top_k": play.episode.top_k}),
            }
        ),
        samples_per_task=0,
        whole_episodes=False,
    )


EVALUATE_WITH_EXPERIENCE = replace(EVALUATE, name="evaluate_with_experience", slice=_slice)
