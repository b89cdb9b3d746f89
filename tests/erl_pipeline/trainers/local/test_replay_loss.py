"""Losses of a batch of a fresh and a replayed sequence, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig, ReplayLoss
from erl_pipeline.trainers.local.observations import Statistics
from erl_pipeline.trainers.local.policy_loss import PolicyLoss, ReplayedPart, replay_metrics, without_clip
from erl_pipeline.trainers.local.tokens import role_columns, token_columns
from erl_pipeline.trainers.sequences import TrainingSequence
from tests.erl_pipeline.trainers.local.packed import CPU, pack_rows

SHAPED = ReplayLoss(role="replay", corrected=True, shaping_beta=0.1, weight_cap=None, clip=False)
FRESH = TrainingSequence(
    "a", "first_attempt", (1,), (2, 3), (1, 1), (math.log(0.5), math.log(0.4)), advantage=-0.5
)
REPLAYED = TrainingSequence("b", "replay", (1,), (4, 5), (1, 1), (math.log(0.3), math.log(0.6)), 0.5)
CURRENT = torch.tensor([0.55, 0.8, 0.3, 0.06]).log()  # ratios 1.1, 2, 1 and 0.1
SUM = ObjectiveConfig(loss_normalization="sequence_sum")


def compute(
    settings: ReplayLoss = SHAPED,
    replayed: TrainingSequence = REPLAYED,
    objective: ObjectiveConfig = SUM,
) -> tuple[float, torch.Tensor, Statistics]:
    """The loss, its gradient to each token's log-probability, and what was observed."""
    statistics, sequences = Statistics(), [FRESH, replayed]
    columns = token_columns(sequences, objective.loss_normalization, CPU)
    roles = role_columns(sequences, objective, ["first_attempt", "replay"], CPU)
    part = ReplayedPart(settings, columns, roles)
    if not settings.clip:
        roles = without_clip(roles)
    loss = PolicyLoss(objective, columns, roles, None, None, statistics, measure_mismatch=True, replayed=part)
    (microbatch,) = pack_rows(sequences, 100)
    logprobs = CURRENT.clone().requires_grad_()
    value = loss.of(microbatch)(logprobs[microbatch.tokens], torch.ones(4), slice(0, 4))
    value.backward()
    assert logprobs.grad is not None
    return float(value.detach()), logprobs.grad, statistics


def test_replayed_tokens_are_never_counted_as_clipped() -> None:
    """Their ratios 3 and 0.1 lie outside of the clip range, which their loss does not use."""
    replayed = replace(REPLAYED, behaviour_logprobs=(math.log(0.1), math.log(0.6)))
    _, _, statistics = compute(SHAPED.model_copy(update={"clip": True}), replayed)
    assert statistics.mean("clipped") == 0.0


def test_replayed_tokens_are_shaped_and_fresh_ones_are_not_clipped() -> None:
    loss, _, statistics = compute()
    shaped = 1 / 1.1 + 0.1 / 0.2
    assert loss == pytest.approx((0.5 * (1.1 + 2) - 0.5 * shaped) / 2)
    assert statistics.mean("clipped") == 0.0
    # Metrics about the sampler are computed from fresh tokens only.
    assert statistics.mean("ratio") == pytest.approx((1.1 + 2) / 2)
    assert statistics.mean("mismatch") == pytest.approx((math.log(1.1) + math.log(2)) / 2)


def test_swapping_stored_log_probabilities_changes_replayed_rows_only() -> None:
    swapped = replace(REPLAYED, behaviour_logprobs=REPLAYED.behaviour_logprobs[::-1])
    _, before, _ = compute()
    _, after, _ = compute(replayed=swapped)
    assert torch.equal(before[:2], after[:2])
    assert not torch.isclose(before[2:], after[2:]).any()


def test_fresh_tokens_can_keep_their_clip_range() -> None:
    positive = replace(FRESH, advantage=0.5)
    objective = SUM
    columns = token_columns([positive, REPLAYED], objective.loss_normalization, CPU)
    roles = role_columns([positive, REPLAYED], objective, ["first_attempt", "replay"], CPU)
    assert float(roles.highest_ratio[0]) == pytest.approx(1.2)
    assert without_clip(roles).highest_ratio.isinf().all()
    assert columns.policy_weights.tolist() == [0.5] * 4
    clipped, _, statistics = compute(SHAPED.model_copy(update={"clip": True}))
    # With a negative advantage the ratio is clipped only from below.
    assert clipped == pytest.approx(compute()[0])
    assert statistics.mean("clipped") == 0.0


def test_without_correction_the_ratio_is_one() -> None:
    plain = SHAPED.model_copy(update={"corrected": False, "shaping_beta": None})
    loss, gradient, _ = compute(plain)
    assert loss == pytest.approx((0.5 * 3.1 - 0.5 * 2) / 2)
    assert gradient[2:].tolist() == pytest.approx([-0.25, -0.25])


def test_importance_weights_of_the_sampler_are_for_fresh_tokens() -> None:
    correction = DecoupledCorrection(type="decoupled", cap=1.5)
    loss, _, statistics = compute(objective=SUM.model_copy(update={"correction": correction}))
    assert loss == pytest.approx((0.5 * (1.1 + 1.5) - 0.5 * (1 / 1.1 + 0.5)) / 2)
    assert statistics.mean("importance") == pytest.approx(1.3)


def test_what_is_reported_of_replay() -> None:
    loss, _, statistics = compute()
    found = replay_metrics(statistics, sequences=1, steps=1)
    assert found.replay_loss + found.fresh_loss == pytest.approx(loss)
    assert found.replay_loss == pytest.approx(-0.25 * (1 / 1.1 + 0.5))
    assert found.replay_ratio_mean == pytest.approx(0.55)
    assert (found.replay_ratio_p10, found.replay_ratio_p50) == pytest.approx((0.19, 0.55))
    assert found.replay_weight_mean == pytest.approx((1 / 1.1 + 0.5) / 2)
    assert found.counters() == {"replayed_sequences": 1}


def test_nothing_observed_is_zero() -> None:
    assert set(replay_metrics(Statistics(), 0, 0).metrics().values()) == {0.0}
