from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.objective import (
    DecoupledCorrection,
    LengthPenalty,
    ObjectiveConfig,
    RoleTerms,
    require_known_roles,
)
from storage.errors import ConfigError


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
        {"correction": {"type": "bypass", "cap": 2.0}},  # bypass has no importance weights
        {"correction": {"type": "decoupled", "cap": 0.5}},  # would truncate the weight of an exact sampler
        {"correction": {"type": "decoupled", "floor": 0.5}},  # only a mask has two sides
        {"loss_length": 8},  # a mean is not divided again
        {"length_penalty": {"limit": 8, "margin": 9}},
        {"kl_estimator": "k1"},  # no gradient in expectation
        {"clip_low": 1.0},
        {"ratio": "sequence"},  # the clip range of tokens would clip no sequence
        {"ratio": "sequence", "clip_high": 4e-4},
        {"dual_clip": 1.0},
        {"advantage_normalisation": "std"},
        {"roles": {"reflection": {"kl_estimator": "k2"}}},  # all roles have the same estimator
        {"roles": {"reflection": {"weight": -1.0}}},
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ObjectiveConfig.model_validate(values)


def test_a_role_takes_the_common_value_for_what_it_does_not_set() -> None:
    config = ObjectiveConfig.model_validate(
        {
            "clip_high": 0.3,
            "dual_clip": 3.0,
            "roles": {"reflection": {"clip_low": 0.1, "entropy_coefficient": 0.01, "weight": 0.5}},
        }
    )
    assert config.terms("first_attempt") == RoleTerms(0.2, 0.3, 3.0, 0.0, 0.0, 1.0)
    assert config.terms("reflection") == RoleTerms(0.1, 0.3, 3.0, 0.0, 0.01, 0.5)
    assert config.terms("reflection").regularized
    assert not config.terms("first_attempt").regularized
    # As it is in a recipe.
    assert ObjectiveConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("role", ["distilled", "observed"])
def test_what_no_policy_sampled_has_neither_kl_nor_entropy_unless_its_role_sets_them(role: str) -> None:
    common: dict[str, object] = {"kl_coefficient": 0.2, "entropy_coefficient": 0.01}
    config = ObjectiveConfig.model_validate(common)
    assert config.terms("first_attempt") == RoleTerms(0.2, 0.2, None, 0.2, 0.01, 1.0)
    assert config.terms(role) == RoleTerms(0.2, 0.2, None, 0.0, 0.0, 1.0)
    own = ObjectiveConfig.model_validate({**common, "roles": {role: {"entropy_coefficient": 0.03}}})
    assert own.terms(role) == RoleTerms(0.2, 0.2, None, 0.0, 0.03, 1.0)


def test_what_is_off_is_in_no_recipe() -> None:
    off = {"loss_length", "truncated", "length_penalty", "ratio", "kl_in", "subgroup_losses", "credit"}
    assert not off & ObjectiveConfig().model_dump().keys()
    assert "floor" not in DecoupledCorrection(type="decoupled").model_dump()
    on = ObjectiveConfig.model_validate(
        {
            "truncated": "leave_out",
            "length_penalty": {"limit": 9, "margin": 4},
            "kl_in": "reward",
            "credit": "turn",
            "subgroup_losses": "averaged",
            "ratio": "sequence",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
        }
    )
    assert ObjectiveConfig.model_validate(on.model_dump(mode="json")) == on


def test_an_answer_loses_reward_from_the_margin_on() -> None:
    penalty = LengthPenalty(limit=10, margin=4)
    assert [penalty.of(tokens) for tokens in (6, 7, 9, 10, 12)] == [0.0, 0.25, 0.75, 1.0, 1.0]


def test_a_reference_is_needed_where_any_role_has_a_kl_term() -> None:
    assert not ObjectiveConfig().needs_reference
    assert ObjectiveConfig(kl_coefficient=0.1).needs_reference
    config = ObjectiveConfig.model_validate({"roles": {"reflection": {"kl_coefficient": 0.1}}})
    assert config.needs_reference


def test_roles_that_the_method_does_not_have_are_refused() -> None:
    config = ObjectiveConfig.model_validate({"roles": {"reflexion": {}}})
    with pytest.raises(
        ConfigError, match="reflexion is no role of this method; allowed: attempt, reflection"
    ):
        require_known_roles(config, ["reflection", "attempt"])
    require_known_roles(ObjectiveConfig(), [])
