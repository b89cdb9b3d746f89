"""The loss of a teacher in an update: which tokens count, with which weight, however they are packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import OptimizerConfig, UpdateConfig
from erl_pipeline.config.self_distillation import DistillationObjective
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.local.observations import Statistics
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.local.self_distillation import TaughtPart, token_scores
from erl_pipeline.trainers.local.tokens import (
    SupportedTokenLoss,
    backward_through_head,
    support_logprobs,
)
from erl_pipeline.trainers.metrics import UpdateMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence

LOGITS = torch.tensor([[1.0, 0.5, -0.5, 0.0], [0.2, -0.3, 0.8, 0.1]])
Q = np.array([[0.5, 0.2, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1]], dtype=np.float32)
CPU = torch.device("cpu")
EVERY = np.tile(np.arange(4, dtype=np.int32), (2, 1))


def scored(places: slice = slice(0, 2)) -> TokenScores:
    """What the teacher says of words 1 and 2, and of the whole vocabulary."""
    none = np.full(2, -np.inf, dtype=np.float32)
    parts: tuple[Any, ...] = (np.log(Q[[0, 1], [1, 2]]), np.zeros(2, np.float32), EVERY, np.log(Q), none)
    return TokenScores(*(part[places] for part in parts))


def attempt(teacher: TokenScores | None, **changes: Any) -> TrainingSequence:
    row = TrainingSequence("a", "first_attempt", (0,), (1, 2), (1, 1), tuple(np.log([0.2, 0.15])), 0.0)
    return replace(row, teacher=teacher, **changes)


def part(rows: Sequence[TrainingSequence], **settings: Any) -> TaughtPart:
    chosen = DistillationObjective.model_validate({"coefficient": 1.0, "ratio_cap": None, **settings})
    return TaughtPart(chosen, rows, ObjectiveConfig(), CPU)


def losses(taught: TaughtPart, rows: Sequence[TrainingSequence]) -> tuple[list[float], list[float]]:
    """The weighted losses of two tokens, and their gradients to the logits."""
    logits = LOGITS.clone().requires_grad_()
    ones = torch.ones(2)
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor([[1], [2]]))[:, 0]
    support = None if taught.ids is None else support_logprobs(logits, taught.ids, ones)
    behaviour = torch.tensor(np.concatenate([row.trained_behaviour_logprobs for row in rows])).float()
    found = taught.losses(logprobs, behaviour, support, torch.arange(2), Statistics())
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    return found.tolist(), gradient.flatten().tolist()


def test_the_loss_is_the_mean_over_taught_tokens_times_its_coefficient() -> None:
    rows = [attempt(scored())]
    found, _ = losses(part(rows, divergence="forward", coefficient=0.1), rows)
    assert sum(found) == pytest.approx(0.1 * 0.116328, abs=1e-6)


def test_an_attempt_without_a_teacher_has_no_such_loss_and_does_not_dilute_that_of_others() -> None:
    one = {"response_mask": (1,), "behaviour_logprobs": (-1.0,)}
    rows = [
        attempt(scored(slice(0, 1)), response_token_ids=(1,), **one),
        attempt(None, response_token_ids=(2,), **one),
    ]
    found, gradient = losses(part(rows, divergence="reverse"), rows)
    assert found == pytest.approx([0.063462, 0.0], abs=1e-6)
    assert gradient[4:] == [0.0] * 4


def test_the_ratio_to_the_sampler_weighs_the_loss_up_to_its_cap() -> None:
    """p / b is 1.380022 and 2.803160, and the latter counts as 2."""
    rows = [attempt(scored())]
    _, gradient = losses(part(rows, estimator="sampled", ratio_cap=2.0), rows)
    assert [2 * each for each in gradient] == pytest.approx(
        [-0.202273, 0.321819, -0.045133, -0.074412, 0.235237, 0.142678, -0.590766, 0.212851], abs=1e-6
    )


def test_a_divergence_above_the_clip_counts_as_the_clip_and_teaches_nothing() -> None:
    rows = [attempt(scored())]
    found, gradient = losses(part(rows, divergence="forward", token_clip=0.05), rows)
    assert found == pytest.approx([0.025, 0.025])
    assert gradient == [0.0] * 8


def test_skipped_tokens_have_no_loss_and_are_not_counted() -> None:
    rows = [attempt(scored())]
    found, _ = losses(part(rows, divergence="forward", skip_tokens=1), rows)
    assert found == pytest.approx([0.0, 0.165925], abs=1e-6)


def test_forward_divergence_of_some_tokens_without_the_others_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed with divergence: forward is true"):
        part([], divergence="forward", tail=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"divergence": "jsd"}, "allowed with estimator: sampled is reverse"),
        ({"token_clip": 0.1}, "allowed with estimator: sampled is null"),
    ],
)
def test_what_a_sampled_token_cannot_estimate_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        part([], estimator="sampled", **settings)


def test_chosen_log_probabilities_come_from_the_same_pass_through_the_head() -> None:
    """Chunk by chunk, with temperatures, in fp32: equal to a plain softmax with its autograd."""
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(3, 7), torch.randn(600, 3, requires_grad=True)
    targets, ids = torch.randint(7, (600,)), torch.rand(600, 7).topk(2).indices
    temperatures = torch.linspace(0.5, 1.5, 600)
    weights = torch.randn(600, 4)

    log_softmax = (head(hidden) / temperatures[:, None]).log_softmax(-1)
    chosen = log_softmax.gather(1, ids)
    others = log_softmax.scatter(1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    every = torch.cat([log_softmax.gather(1, targets[:, None]), chosen, others], dim=1)
    expected = torch.autograd.grad((every * weights).sum(), [hidden, head.weight])

    def loss(logprobs: Any, _: Any, place: slice, support: Any) -> torch.Tensor:
        found = torch.cat([logprobs[:, None], support[0], support[1][:, None]], dim=1)
        return (found * weights[place]).sum()

    head.weight.grad = None
    leaf = hidden.detach().requires_grad_()
    calls: list[None] = []
    backward_through_head(
        head, leaf * 1, targets, temperatures, SupportedTokenLoss(loss, ids), lambda: calls.append(None)
    )
    assert len(calls) == 3  # two chunks, and what made the hidden states
    torch.testing.assert_close(leaf.grad, expected[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(head.weight.grad, expected[1], atol=1e-4, rtol=1e-4)


MakeModel = Callable[[], PreTrainedModel]


def learner(model: PreTrainedModel, learning_rate: float = 1e-3) -> Learner:
    return Learner(model, PolicyOptimizer(model, OptimizerConfig(learning_rate=learning_rate)))


def taught_by(
    model: PreTrainedModel, sequences: Sequence[TrainingSequence], top_k: int = 4
) -> list[TrainingSequence]:
    """The sequences without advantage, with what the model says at their tokens."""
    found = token_scores(learner(model), model, sequences, 12, top_k, own_base=False)
    return [replace(row, teacher=scores, advantage=0.0) for row, scores in zip(sequences, found, strict=True)]


def update(model: PreTrainedModel, rows: Sequence[TrainingSequence], tokens: int = 1000) -> UpdateMetrics:
    objective = DistillationObjective(coefficient=1.0, ratio_cap=None)
    work = Reinforcement(
        rows,
        ObjectiveConfig(),
        UpdateConfig(microbatch_tokens=tokens),
        seed=0,
        distillation=objective,
    )
    return reinforce(learner(model), work)


def test_scores_say_what_a_plain_pass_says(model: PreTrainedModel, sequences: list[TrainingSequence]) -> None:
    row = sequences[2]
    (found,) = token_scores(learner(model), model, [row], 1000, 3, own_base=False)

    places = [len(row.prompt_token_ids) - 1 + offset for offset in row.trained_offsets]
    token_ids = torch.tensor([row.prompt_token_ids + row.response_token_ids])
    expected = model(token_ids).logits[0, places].log_softmax(-1).detach()
    top = expected.topk(3)
    assert np.array_equal(found.ids, top.indices.numpy())
    assert found.id_logprobs == pytest.approx(top.values.numpy(), abs=1e-4)
    assert np.exp(found.tail_logprobs) == pytest.approx(1 - top.values.exp().sum(-1).numpy(), abs=1e-4)
    assert found.entropies == pytest.approx(-(expected.exp() * expected).sum(-1).numpy(), abs=1e-3)

    again = replace(row, teacher=replace(found, ids=np.zeros_like(found.ids)))
    (of_these,) = token_scores(learner(model), model, [again], 1000, 3, own_base=False)
    assert not of_these.ids.any()
    assert of_these.id_logprobs[:, 0] == pytest.approx(expected[:, 0].numpy(), abs=1e-4)


def test_a_teacher_that_is_the_policy_changes_nothing(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model = make_model()
    metrics = update(model, taught_by(model, sequences))
    assert metrics.sequences == len(sequences)  # though none has an advantage
    assert metrics.optimizer_steps == 1
    assert metrics.grad_norm == pytest.approx(0.0, abs=1e-6)
    assert metrics.metrics()["distillation_loss"] == pytest.approx(0.0, abs=1e-6)


def another_teacher(make_model: MakeModel) -> PreTrainedModel:
    """A model near the student, so that their distributions differ."""
    torch.manual_seed(1)
    teacher = make_model()
    with torch.no_grad():
        for weight in teacher.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return teacher


@pytest.mark.parametrize("microbatch_tokens", [1000, 12])
def test_gradients_of_both_losses_are_measured_apart_and_nothing_else_changes(
    make_model: MakeModel, sequences: list[TrainingSequence], microbatch_tokens: int
) -> None:
    """Each norm is that of an update by this loss alone."""
    teacher = another_teacher(make_model)
    taught = [
        replace(row, advantage=sampled.advantage)
        for row, sampled in zip(taught_by(teacher, sequences), sequences, strict=True)
    ]

    def trained(
        rows: Sequence[TrainingSequence], *, reinforced: bool = True, **distillation: bool
    ) -> tuple[UpdateMetrics, PreTrainedModel]:
        model = make_model()
        work = Reinforcement(
            rows,
            ObjectiveConfig(entropy_coefficient=0.01 if reinforced else 0.0),
            UpdateConfig(epochs=2 if distillation else 1, microbatch_tokens=microbatch_tokens),
            seed=0,
            distillation=DistillationObjective(coefficient=1.0, **distillation),
        )
        return reinforce(learner(model), work), model

    both, model = trained(taught, grad_norms=True)
    without, same = trained(taught, grad_norms=False)
    reinforced, _ = trained(sequences)
    distilled, _ = trained([replace(row, advantage=0.0) for row in taught], reinforced=False)

    found = both.metrics()
    assert found["reinforcement_grad_norm"] == pytest.approx(reinforced.grad_norm, rel=1e-5)
    assert found["distillation_grad_norm"] == pytest.approx(distilled.grad_norm, rel=1e-5)
    assert both.microbatches == 2 * without.microbatches  # 2 epochs, and 2 passes more
    assert "distillation_grad_norm" not in without.metrics()
    assert both.grad_norm == without.grad_norm
    assert found["distillation_loss"] == without.metrics()["distillation_loss"]
    assert both.records == without.records
    for one, other in zip(model.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)


def test_packing_changes_neither_loss_nor_gradient(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    teacher = another_teacher(make_model)
    rows = taught_by(teacher, sequences)
    whole, cut = (update(make_model(), rows, tokens) for tokens in (1000, 12))

    assert (whole.microbatches, cut.microbatches) == (1, 4)
    assert whole.grad_norm > 0.01
    assert cut.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
    assert cut.metrics()["distillation_loss"] == pytest.approx(whole.metrics()["distillation_loss"], rel=1e-4)
