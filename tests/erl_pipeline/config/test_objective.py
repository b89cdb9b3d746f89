from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig


def test_correction_is_chosen_by_its_type() -> None:
    config = ObjectiveConfig.model_validate(
        {"correction": {"type": "decoupled", "level": "sequence", "cap": 3}}
    )
    assert config.correction == DecoupledCorrection(
        type="decoupled", level="sequence", mode="truncate", cap=3.0
    )


@pytest.mark.parametrize(
    "values",
    [
        {"correction": {"type": "bypass", "cap": 2.0}},  # bypass has no importance weight
        {"correction": {"type": "decoupled", "cap": 0.5}},  # would truncate the weight of an exact sampler
        {"kl_estimator": "k1"},  # no gradient in expectation
        {"clip_low": 1.0},
        {"dual_clip": 1.0},
        {"advantage_normalisation": "std"},
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ObjectiveConfig.model_validate(values)
