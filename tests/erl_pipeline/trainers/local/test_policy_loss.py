"""Losses of a batch of two sequences, worked out by hand: two tokens with advantage 2, one with -1."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig
from erl_pipeline.trainers.local.observations import Statistics
from erl_pipeline.trainers.local.policy_loss import PolicyLoss
from erl_pipeline.trainers.local.tokens import role_columns, token_columns
from erl_pipeline.trainers.sequences import TrainingSequence
from tests.erl_pipeline.trainers.local.packed import CPU, pack_rows

BEHAVIOUR = (math.log(0.5), math.log(0.4), math.log(0.2))
SEQUENCES = [
    TrainingSequence("a", "first_attempt", (1,), (2, 3), (1, 1), BEHAVIOUR[:2], 2.0),
    TrainingSequence("b", "first_attempt", (1,), (4,), (1,), BEHAVIOUR[2:], -1.0),
]
CURRENT = torch.tensor([0.55, 0.8, 0.3]).log()  # ratios 1.1, 2 and 1.5
ENTROPIES = torch.tensor([1.0, 2.0, 3.0])
TWO_ROLES = [SEQUENCES[0], replace(SEQUENCES[1], role="reflection")]


def compute(
    objective: ObjectiveConfig,
    old: torch.Tensor | None = None,
    reference: torch.Tensor | None = None,
    sequences: list[TrainingSequence] = SEQUENCES,
    log_ratios: torch.Tensor | None = None,
) -> tuple[PolicyLoss, float, Statistics]:
    statistics = Statistics()
    columns = token_columns(sequences, objective.loss_normalization, CPU)
    roles = role_columns(sequences, objective, ["first_attempt", "reflection"], CPU)
    policy_loss = PolicyLoss(
        objective, columns, roles, old, reference, statistics, measure_mismatch=True, log_ratios=log_ratios
    )
    (microbatch,) = pack_rows(sequences, 100)
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


def test_ratios_of_sequences_take_the_place_of_those_of_tokens() -> None:
    """Ratios 1.25 and 1.5 at a clip range up to 1.3: the second's advantage is negative, so none is
    clipped."""
    objective = ObjectiveConfig(ratio="sequence", clip_low=0.2, clip_high=0.3)
    log_ratios = torch.tensor([1.25, 1.25, 1.5]).log()
    _, loss, statistics = compute(objective, log_ratios=log_ratios)
    assert loss == pytest.approx((-1.25 * 2 - 1.25 * 2 + 1.5) / 3)
    assert statistics.mean("ratio") == pytest.approx((1.25 + 1.25 + 1.5) / 3)
    # Ratios to the trainer before the first step, times weights of the mismatch of tokens: 1, 1.5 and 1.5.
    decoupled = objective.model_copy(update={"correction": DecoupledCorrection(type="decoupled")})
    old = torch.tensor([0.5, 0.6, 0.3]).log()
    _, loss, _ = compute(decoupled, old=old, log_ratios=log_ratios)
    assert loss == pytest.approx((-1.25 * 2 - 1.25 * 2 * 1.5 + 1.5 * 1.5) / 3)


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


def test_kl_in_the_reward_is_no_part_of_the_loss() -> None:
    objective = ObjectiveConfig(kl_coefficient=0.1, kl_in="reward")
    policy_loss, loss, statistics = compute(objective, reference=CURRENT - 0.5)
    assert policy_loss.parts() == {"policy_loss": loss}
    assert statistics.mean("kl") == pytest.approx(math.exp(-0.5) - 1 + 0.5)  # k3, as in the loss


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
    roles = role_columns(SEQUENCES, ObjectiveConfig(), ["first_attempt"], CPU)
    parts = PolicyLoss(ObjectiveConfig(), columns, roles, None, None, Statistics(), measure_mismatch=False)
    for microbatch in pack_rows(SEQUENCES, 1):
        tokens = microbatch.tokens
        parts.of(microbatch)(CURRENT[tokens], ENTROPIES[tokens], slice(0, len(tokens)))
    assert parts.parts()["policy_loss"] == pytest.approx(whole.parts()["policy_loss"])
    assert len(pack_rows(SEQUENCES, 1)) == 2


def test_each_role_has_its_own_clip_range() -> None:
    """The reflection's ratio of 1.5 has the advantage -1; its surrogate is bounded at 1.2 times that. The
    second token of the first attempt has ratio 2, and is clipped at 1.3."""
    objective = ObjectiveConfig.model_validate(
        {"roles": {"first_attempt": {"clip_high": 0.3}, "reflection": {"dual_clip": 1.2}}}
    )
    _, loss, statistics = compute(objective, sequences=TWO_ROLES)
    assert loss == pytest.approx((-1.1 * 2 - 1.3 * 2 + 1.2) / 3)
    assert [statistics.group_mean("clipped", role) for role in (0, 1)] == [0.5, 1.0]
    assert [statistics.group_mean("entropy", role) for role in (0, 1)] == [1.5, 3.0]


def test_each_role_has_its_own_regularizers() -> None:
    """Two nats away from the reference, k2 is 2 at each of the three tokens; the reflection has the third."""
    objective = ObjectiveConfig.model_validate(
        {
            "kl_coefficient": 0.1,
            "kl_estimator": "k2",
            "roles": {"reflection": {"kl_coefficient": 0.4, "entropy_coefficient": 0.01}},
        }
    )
    policy_loss, _, _ = compute(objective, reference=CURRENT - 2.0, sequences=TWO_ROLES)
    parts = policy_loss.parts()
    assert parts["kl_loss"] == pytest.approx((0.1 * 2 + 0.1 * 2 + 0.4 * 2) / 3)
    assert parts["entropy_loss"] == pytest.approx(-0.01 * 3.0 / 3)


def test_without_overrides_columns_give_the_bits_of_plain_numbers() -> None:
    """The loss and its gradient as they are written with the numbers of the objective themselves."""
    stream = torch.Generator().manual_seed(0)
    logprobs = -3 * torch.rand(1000, generator=stream)
    behaviour = -3 * torch.rand(1000, generator=stream)
    first, second = tuple(behaviour[:400].tolist()), tuple(behaviour[400:].tolist())
    entropies = torch.rand(1000, generator=stream)
    reference = -3 * torch.rand(1000, generator=stream)
    sequences = [
        TrainingSequence("a", "first_attempt", (1,), (2,) * 400, (1,) * 400, first, 2.0),
        TrainingSequence("b", "reflection", (1,), (2,) * 600, (1,) * 600, second, -1.0),
    ]
    objective = ObjectiveConfig(
        clip_low=0.23, clip_high=0.37, dual_clip=1.7, kl_coefficient=0.3, entropy_coefficient=0.07
    )
    columns = token_columns(sequences, objective.loss_normalization, CPU)
    roles = role_columns(sequences, objective, ["first_attempt", "reflection"], CPU)
    by_columns = PolicyLoss(objective, columns, roles, None, reference, Statistics(), measure_mismatch=False)
    (microbatch,) = pack_rows(sequences, 10_000)
    order = microbatch.tokens
    found = logprobs.clone().requires_grad_()
    loss = by_columns.of(microbatch)(found[order], entropies[order], slice(0, 1000))

    plain = logprobs.clone().requires_grad_()
    chosen, advantages = plain[order], columns.advantages[order]
    ratio = (chosen - columns.behaviour_logprobs[order]).clamp(-20.0, 20.0).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - 0.23, 1 + 0.37) * advantages)
    bound = 1.7 * advantages
    surrogate = torch.where((advantages < 0) & (surrogate < bound), bound, surrogate)
    difference = (chosen - reference[order]).clamp(-20.0, 20.0)
    divergence = torch.expm1(-difference) + difference
    weights = columns.regularizer_weights[order]
    expected = (
        (-surrogate * columns.policy_weights[order]).sum()
        + (0.3 * divergence * weights).sum()
        + (-(0.07 * entropies[order] * weights)).sum()
    )
    assert torch.equal(loss, expected)
    loss.backward()
    expected.backward()
    assert found.grad is not None
    assert plain.grad is not None
    assert torch.equal(found.grad, plain.grad)
