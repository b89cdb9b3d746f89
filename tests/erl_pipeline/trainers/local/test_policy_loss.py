"""Losses of a batch of two sequences, worked out by hand: two tokens with advantage 2, one with -1."""

from __future__ import annotations

import math

import pytest
import torch

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig
from erl_pipeline.trainers.local.packing import pack_rows
from erl_pipeline.trainers.local.policy_loss import PolicyLoss
from erl_pipeline.trainers.local.sequences import TrainingSequence
from erl_pipeline.trainers.local.statistics import Statistics
from erl_pipeline.trainers.local.token_columns import token_columns

CPU = torch.device("cpu")
BEHAVIOUR = (math.log(0.5), math.log(0.4), math.log(0.2))
SEQUENCES = [
    TrainingSequence("a", "first_attempt", (1,), (2, 3), (1, 1), BEHAVIOUR[:2], 2.0),
    TrainingSequence("b", "first_attempt", (1,), (4,), (1,), BEHAVIOUR[2:], -1.0),
]
CURRENT = torch.tensor([0.55, 0.8, 0.3]).log()  # ratios 1.1, 2 and 1.5
ENTROPIES = torch.tensor([1.0, 2.0, 3.0])


def compute(
    objective: ObjectiveConfig, old: torch.Tensor | None = None, reference: torch.Tensor | None = None
) -> tuple[PolicyLoss, float, Statistics]:
    statistics = Statistics()
    columns = token_columns(SEQUENCES, objective.loss_normalization, CPU)
    policy_loss = PolicyLoss(objective, columns, old, reference, statistics, measure_mismatch=True)
    (microbatch,) = pack_rows(SEQUENCES, 100, CPU)
    loss = policy_loss.of(microbatch)(CURRENT[microbatch.tokens], ENTROPIES[microbatch.tokens], slice(0, 3))
    return policy_loss, float(loss), statistics


def test_bypass_takes_the_ratio_against_the_sampler() -> None:
    policy_loss, loss, statistics = compute(ObjectiveConfig())
    assert loss == pytest.approx((-1.1 * 2 - 1.2 * 2 + 1.5) / 3)
    assert policy_loss.parts() == {"policy_loss": pytest.approx(loss)}
    assert statistics.mean("ratio") == pytest.approx((1.1 + 2 + 1.5) / 3)
    assert statistics.mean("clipped") == pytest.approx(1 / 3)
    assert statistics.mean("mismatch") == pytest.approx((math.log(1.1) + math.log(2) + math.log(1.5)) / 3)
    assert statistics.maximum("mismatch") == pytest.approx(math.log(2))
    # k3 of KL(sampler || trainer): ratio - 1 - log ratio.
    expected = (0.1 - math.log(1.1)) + (1 - math.log(2)) + (0.5 - math.log(1.5))
    assert statistics.mean("mismatch_kl") == pytest.approx(expected / 3)


def test_sequence_mean_weighs_sequences_alike() -> None:
    _, loss, _ = compute(ObjectiveConfig(loss_normalization="sequence_mean"))
    assert loss == pytest.approx(((-1.1 * 2 - 1.2 * 2) / 2 + 1.5) / 2)


def test_decoupled_in_a_single_step_has_ratio_one_and_weighs_the_mismatch() -> None:
    correction = DecoupledCorrection(type="decoupled", cap=1.8)
    _, loss, statistics = compute(ObjectiveConfig(correction=correction))
    assert loss == pytest.approx((-1.1 * 2 - 1.8 * 2 + 1.5) / 3)
    assert statistics.mean("ratio") == 1.0
    assert statistics.mean("importance") == pytest.approx((1.1 + 1.8 + 1.5) / 3)
    assert statistics.mean("importance_capped") == pytest.approx(1 / 3)


def test_decoupled_with_old_logprobs_separates_ratio_and_weight() -> None:
    # Ratios to the old policy 1, 4/3 (clipped to 1.2) and 1; sequence weights 1.1 * 1.5 and 1.5.
    old = torch.tensor([0.55, 0.6, 0.3]).log()
    correction = DecoupledCorrection(type="decoupled", level="sequence", cap=1.6)
    _, loss, statistics = compute(ObjectiveConfig(correction=correction), old=old)
    assert loss == pytest.approx((-2 * 1.6 - 1.2 * 2 * 1.6 + 1.5) / 3)
    assert statistics.mean("importance_capped") == pytest.approx(2 / 3)


def test_kl_and_entropy_are_added_with_their_coefficients() -> None:
    objective = ObjectiveConfig(kl_coefficient=0.1, kl_estimator="k2", entropy_coefficient=0.01)
    policy_loss, loss, statistics = compute(objective, reference=CURRENT - 2.0)
    parts = policy_loss.parts()
    assert parts["kl_loss"] == pytest.approx(0.1 * 2.0)  # (2 nats)^2 / 2
    assert parts["entropy_loss"] == pytest.approx(-0.01 * 2.0)
    assert loss == pytest.approx(sum(parts.values()))
    assert statistics.mean("kl") == pytest.approx(2.0)
    assert statistics.mean("entropy") == pytest.approx(2.0)


def test_parts_add_up_over_microbatches() -> None:
    columns = token_columns(SEQUENCES, "token_mean", CPU)
    whole, _, _ = compute(ObjectiveConfig())
    parts = PolicyLoss(ObjectiveConfig(), columns, None, None, Statistics(), measure_mismatch=False)
    for microbatch in pack_rows(SEQUENCES, 1, CPU):
        tokens = microbatch.tokens
        parts.of(microbatch)(CURRENT[tokens], ENTROPIES[tokens], slice(0, len(tokens)))
    assert parts.parts()["policy_loss"] == pytest.approx(whole.parts()["policy_loss"])
    assert len(pack_rows(SEQUENCES, 1, CPU)) == 2
