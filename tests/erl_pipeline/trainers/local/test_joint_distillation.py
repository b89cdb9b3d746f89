"""Distilled rows in an update: losses and gradients worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import CorrectionConfig, DecoupledCorrection, ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.trainers.interface import Reinforcement, SupervisedTraining
from erl_pipeline.trainers.local.observations import Statistics
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.policy_loss import PolicyLoss
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.local.supervised import fine_tune_supervised
from erl_pipeline.trainers.local.tokens import role_columns, token_columns
from erl_pipeline.trainers.sequences import TrainingSequence
from tests.erl_pipeline.trainers.local.packed import CPU, pack_rows

SAMPLED = TrainingSequence(
    "a", "first_attempt", (1,), (2, 3), (1, 1), (math.log(0.5), math.log(0.4)), advantage=-0.5
)
DISTILLED = TrainingSequence("b", "distilled", (1,), (4, 5), (1, 1), (), advantage=1.0)
CURRENT = torch.tensor([0.55, 0.44, 0.01, 0.9]).log()  # ratios of sampled tokens: 1.1 and 1.1
ROLES = ["distilled", "first_attempt"]


def compute(
    distilled: TrainingSequence = DISTILLED,
    objective: ObjectiveConfig | None = None,
    old_logprobs: torch.Tensor | None = None,
) -> tuple[float, list[float], Statistics]:
    """The loss, its gradient to each token's log-probability, and what was observed."""
    objective = objective or ObjectiveConfig()
    statistics, sequences = Statistics(), [SAMPLED, distilled]
    columns = token_columns(sequences, objective.loss_normalization, CPU)
    roles = role_columns(sequences, objective, ROLES, CPU)
    loss = PolicyLoss(objective, columns, roles, old_logprobs, None, statistics, measure_mismatch=True)
    (microbatch,) = pack_rows(sequences, 100)
    logprobs = CURRENT.clone().requires_grad_()
    value = loss.of(microbatch)(logprobs[microbatch.tokens], torch.ones(4), slice(0, 4))
    value.backward()
    assert logprobs.grad is not None
    return float(value.detach()), logprobs.grad.tolist(), statistics


def test_a_distilled_token_has_the_gradient_of_the_supervised_loss() -> None:
    """Four tokens, so each counts a quarter. Sampled ones: -(-.5) x 1.1 / 4. Distilled ones: the gradient of
    -log p / 4 is -1/4, whether the policy finds the token likely (.9) or not (.01)."""
    loss, gradient, statistics = compute()
    assert gradient == pytest.approx([0.1375, 0.1375, -0.25, -0.25])
    # In value a ratio of 1 times the advantage: (.5 x 1.1 x 2 - 1 - 1) / 4.
    assert loss == pytest.approx(-0.225)
    assert statistics.mean("ratio") == pytest.approx(1.1)
    assert statistics.mean("mismatch") == pytest.approx(math.log(1.1))
    assert statistics.mean("clipped") == 0.0


def test_a_row_weighs_what_its_reward_is() -> None:
    _, gradient, _ = compute(replace(DISTILLED, weight=0.3))
    assert gradient == pytest.approx([0.1375, 0.1375, -0.075, -0.075])


@pytest.mark.parametrize("role", ["distilled", "observed"])
@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveConfig(),
        ObjectiveConfig(ratio="sequence", clip_low=3e-4, clip_high=4e-4),
        ObjectiveConfig(kl_in="reward", kl_coefficient=0.1),
    ],
    ids=["token", "sequence", "KL in the reward"],
)
def test_one_step_on_unsampled_rows_is_one_supervised_step(
    make_model: Callable[[], PreTrainedModel], role: str, objective: ObjectiveConfig
) -> None:
    """Both are the mean of -log p over five tokens, those of the second row times .3, at one temperature."""
    rows = [
        TrainingSequence("a", role, (3, 1), (7, 8, 9), (1, 0, 1), (), advantage=1.0),
        TrainingSequence("b", role, (4, 2), (4, 5, 6), (1, 1, 1), (), advantage=1.0, weight=0.3),
    ]
    joint, separate = make_model(), make_model()

    def learner(model: PreTrainedModel) -> Learner:
        return Learner(model, PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-3)))

    work = Reinforcement(rows, objective, UpdateConfig(), seed=0)
    reinforced = reinforce(learner(joint), work, make_model)
    tuned = fine_tune_supervised(learner(separate), SupervisedTraining(rows, FineTuneConfig(steps=1), seed=0))
    assert reinforced.sequences == 2
    assert reinforced.grad_norm == pytest.approx(tuned.grad_norm, rel=1e-5)
    assert reinforced.policy_loss == pytest.approx(-(2 + 0.3 * 3) / 5)
    for one, other in zip(joint.parameters(), separate.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(("own", "divergence"), [({}, 0.125), ({"kl_coefficient": 0.1}, 0.375)])
def test_entropy_and_kl_are_means_over_the_tokens_that_these_terms_are_about(
    own: dict[str, float], divergence: float
) -> None:
    """Entropies are 2 and 4 at sampled tokens, 8 at distilled ones, which have a KL term only by settings of
    their role. By k2 the KL is half the squared difference: .125 at sampled tokens, .5 and .75 at the others,
    in the mean .375."""
    objective = ObjectiveConfig(kl_coefficient=0.1, kl_estimator="k2", roles={"distilled": own})
    statistics, sequences = Statistics(), [SAMPLED, DISTILLED]
    columns = token_columns(sequences, objective.loss_normalization, CPU)
    roles = role_columns(sequences, objective, ROLES, CPU)
    reference = CURRENT - torch.tensor([0.5, 0.5, 1.0, 1.5**0.5])
    loss = PolicyLoss(objective, columns, roles, None, reference, statistics, measure_mismatch=False)
    (microbatch,) = pack_rows(sequences, 100)
    entropies = torch.tensor([2.0, 4.0, 8.0, 8.0])
    loss.of(microbatch)(CURRENT[microbatch.tokens], entropies[microbatch.tokens], slice(0, 4))
    assert statistics.mean("entropy") == pytest.approx(3.0)
    assert statistics.group_mean("entropy", ROLES.index("distilled")) == pytest.approx(8.0)
    assert statistics.mean("kl") == pytest.approx(divergence)


def test_entropy_and_kl_do_not_work_against_distilled_rows(
    make_model: Callable[[], PreTrainedModel],
) -> None:
    plain, regularized = make_model(), make_model()
    for model, objective in (
        (plain, ObjectiveConfig()),
        (regularized, ObjectiveConfig(entropy_coefficient=0.3, kl_coefficient=0.3)),
    ):
        learner = Learner(model, PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-3)))
        work = Reinforcement([DISTILLED], objective, UpdateConfig(epochs=2), seed=0)
        reinforce(learner, work, make_model if objective.needs_reference else None)
    for one, other in zip(plain.parameters(), regularized.parameters(), strict=True):
        assert torch.equal(one, other)


def test_other_rows_still_need_the_log_probabilities_of_their_sampler(
    make_model: Callable[[], PreTrainedModel],
) -> None:
    model = make_model()
    row = replace(SAMPLED, behaviour_logprobs=())
    work = Reinforcement([row], ObjectiveConfig(), UpdateConfig(), seed=0)
    with pytest.raises(ValueError, match="trajectory a has no log-probabilities of its sampler"):
        reinforce(Learner(model, PolicyOptimizer(model, OptimizerConfig())), work)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_correction_leaves_distilled_rows_alone(level: str) -> None:
    """Old log-probabilities are those of the sampler plus log 2, so sampled tokens weigh 2, and with the
    level `sequence` 4 in place of the cap of 5; their ratio is 1.1 / 2. Distilled tokens weigh 1."""
    correction: CorrectionConfig = DecoupledCorrection.model_validate(
        {"type": "decoupled", "level": level, "cap": 5.0}
    )
    objective = ObjectiveConfig(correction=correction, clip_low=0.9)
    old = torch.tensor([1.0, 0.8, 0.2, 0.5]).log()
    _, gradient, statistics = compute(objective=objective, old_logprobs=old)
    weight = 2.0 if level == "token" else 4.0
    sampled = 0.5 * weight * 0.55 / 4
    assert gradient == pytest.approx([sampled, sampled, -0.25, -0.25])
    assert statistics.mean("importance") == pytest.approx(weight)
