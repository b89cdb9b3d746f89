"""Settings: their names, their effect, and which of them cannot be combined."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from erl_pipeline.config.run import RunConfig
from erl_pipeline.methods.complementary.settings import (
    ComplementaryConfig,
    CrlExperienceConfig,
    WeightsExperienceConfig,
    retrieval_settings,
)
from erl_pipeline.stages.extractor.extractor import extractor_objective
from storage.memory.search import Scoring

PRETRAINED = {"type": "pretrained", "model": "/models/llama"}


def config(experience: Any = True, **changes: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "small",
            "iterations": 2,
            "method": {"type": "complementary", "experience": experience},
            "environment": {"type": "frozen_lake"},
            "policy": {"type": "tiny"},
            **changes,
        }
    )


def test_experience_is_named_by_its_kind_or_off() -> None:
    kinds = [
        ComplementaryConfig(experience=value).experience for value in ("weights", "crl", {"top_k": 2}, False)
    ]
    assert [type(each) for each in kinds] == [
        WeightsExperienceConfig,
        CrlExperienceConfig,
        CrlExperienceConfig,
        type(None),
    ]


def test_an_unused_entry_beats_a_more_similar_one_that_was_shown_often() -> None:
    """.80 unused against .90 shown three times: .90 - .4 ln 4 = .345."""
    found = retrieval_settings(ComplementaryConfig())
    assert found is not None
    scoring = Scoring(
        credit_weight=found.credit_weight,
        support_weight=found.support_weight,
        retrieval_penalty=found.retrieval_penalty,
    )
    assert scoring.score(0.80, 0.5, 9, 0) == 0.8
    assert scoring.score(0.90, 0.5, 9, 3) == pytest.approx(0.345, abs=1e-3)


def test_sixteen_candidates_are_ranked_and_the_best_may_give_its_place() -> None:
    found = retrieval_settings(ComplementaryConfig())
    assert found is not None
    assert (found.candidates, found.top_k, found.withhold) == (16, 2, 0.5)
    cosine = retrieval_settings(ComplementaryConfig(experience={"retrieval_penalty": 0.0, "dropout": 0.0}))
    assert cosine is not None
    assert (cosine.candidates, cosine.top_k) == (None, 1)
    assert retrieval_settings(ComplementaryConfig(experience=None)) is None


def test_the_extractor_is_trained_by_cispo() -> None:
    objective = extractor_objective(0.1)
    terms = objective.terms("extraction")
    assert (objective.surrogate, terms.clip_low, terms.clip_high) == ("cispo", 0.1, 0.1)
    assert (objective.loss_normalization, objective.correction.type) == ("token_mean", "bypass")
    assert not terms.regularized


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"environment": {"type": "frozen_lake", "action_mode": "plan"}},
            r"method\.experience: on needs a model for its extractor; with policy\.type: tiny",
        ),
        (
            {"experience": {"extractor": {"model": "/models/other"}}},
            r"method\.experience\.extractor\.model: /models/other; allowed with policy\.type: tiny is null",
        ),
        (
            {"rollouts": {"group_size": 2}},
            r"rollouts\.group_size: 2; with the method's withhold: 0\.5 a subgroup",
        ),
        (
            {
                "policy": PRETRAINED,
                "environment": {"type": "frozen_lake", "format": "prose"},
                "engine": {"type": "vllm", "servers": [{"url": "http://one:8000"}]},
            },
            r"engine\.servers: these servers serve one model, and method\.experience: on samples from two",
        ),
        (
            {"policy": PRETRAINED, "experience": {"extractor": {"cold_start": {"steps": 3}}}},
            r"extractor\.cold_start is for policy\.type: tiny; leave it out with policy\.type: pretrained",
        ),
        (
            {"experience": "weights", "objective": {"observation_coefficient": 0.1}},
            r"objective\.observation_coefficient: 0\.1; allowed with method\.experience\.type: weights is 0",
        ),
        (
            {"experience": "weights", "objective": {"credit": "turn"}},
            r"objective\.credit: turn; allowed with method\.experience\.type: weights is episode",
        ),
    ],
)
def test_what_cannot_be_had_together_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        config(**changes)


def test_what_needs_no_extractor_is_not_refused() -> None:
    plans = {"environment": {"type": "frozen_lake", "action_mode": "plan"}}
    config(False, **plans)
    config("weights", **plans, rollouts={"group_size": 2})
