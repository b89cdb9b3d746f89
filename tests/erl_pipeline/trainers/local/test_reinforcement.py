from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import OptimizerConfig, UpdateConfig
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.preparation import ready_for_training
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.metrics import UpdateMetrics
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import TrainingDiverged

MakeModel = Callable[[], PreTrainedModel]


def update(
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    objective: ObjectiveConfig | None = None,
    config: UpdateConfig | None = None,
    *,
    learning_rate: float = 1e-3,
    reference: PreTrainedModel | None = None,
    replay: ReplayLoss | None = None,
) -> UpdateMetrics:
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=learning_rate))
    work = Reinforcement(
        sequences, objective or ObjectiveConfig(), config or UpdateConfig(), seed=0, replay=replay
    )
    return reinforce(Learner(model, optimizer), work, None if reference is None else lambda: reference)


def sampled_by(model: PreTrainedModel, sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """The sequences, with the model's own log-probabilities as those of the behaviour policy."""
    result = []
    for row in sequences:
        with ready_for_training(model, gradient_checkpointing=False) as forward:
            count = len(row.trained_offsets)
            logprobs = iter(forward.logprobs([row], torch.full((count,), row.temperature), 1000).tolist())
        behaviour = tuple(next(logprobs) if bit else 0.0 for bit in row.response_mask)
        result.append(replace(row, behaviour_logprobs=behaviour))
    return result


def weights(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_a_rewarded_response_becomes_likely(make_model: MakeModel) -> None:
    model = make_model()
    prompt = (3, 1, 4)
    good = TrainingSequence("good", "first_attempt", prompt, (7, 8, 9), (1, 1, 1), (0.0,) * 3, 1.0)
    bad = TrainingSequence("bad", "first_attempt", prompt, (4, 5, 6), (1, 1, 1), (0.0,) * 3, -1.0)
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-2))
    probabilities = []
    for _ in range(20):
        rows = sampled_by(model, [good, bad])
        probabilities.append([math.exp(sum(row.behaviour_logprobs)) for row in rows])
        reinforce(Learner(model, optimizer), Reinforcement(rows, ObjectiveConfig(), UpdateConfig(), seed=0))
    (good_before, _), (good_after, bad_after) = probabilities[0], probabilities[-1]
    assert good_before < 1e-3
    assert good_after > 100 * good_before
    assert bad_after < good_after / 100


@pytest.mark.parametrize("normalization", ["token_mean", "sequence_mean", "sequence_sum"])
def test_microbatches_do_not_change_the_step(
    make_model: MakeModel, sequences: list[TrainingSequence], normalization: str
) -> None:
    objective = ObjectiveConfig.model_validate(
        {"loss_normalization": normalization, "entropy_coefficient": 0.01}
    )
    models = [make_model(), make_model()]
    start = weights(models[0])
    numbers = [
        update(
            model,
            sampled_by(model, sequences),
            objective,
            UpdateConfig(microbatch_tokens=budget),
            learning_rate=1.0,
        )
        for model, budget in zip(models, (1000, 12), strict=True)
    ]
    assert (numbers[0].microbatches, numbers[1].microbatches) == (1, 4)
    assert numbers[0].grad_norm == pytest.approx(numbers[1].grad_norm, rel=1e-5)
    assert numbers[0].policy_loss == pytest.approx(numbers[1].policy_loss, rel=1e-5)
    # AdamW's first step is the sign of the gradient: it may differ only where the gradient is rounding error.
    same = (weights(models[0]) - weights(models[1])).abs() < 1e-3
    assert float(same.float().mean()) > 0.99
    assert float((weights(models[0]) - start).abs().median()) == pytest.approx(1.0, abs=0.01)


def test_on_the_samplers_own_policy_ratio_is_one_and_mismatch_none(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model = make_model()
    metrics = update(model, sampled_by(model, sequences))
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert metrics.mismatch_max == pytest.approx(0.0, abs=1e-5)
    assert metrics.clip_fraction == 0.0
    # The loss is minus the mean advantage over tokens: 3 * 1 - 0.5 + 3 * 0.3 - 2 + 3 * 0.5 + 3 * 2 - 9 * 0.7.
    assert metrics.policy_loss == pytest.approx(-2.6 / 24, abs=1e-5)
    assert metrics.entropy == pytest.approx(math.log(31), abs=0.1)


def test_counters(make_model: MakeModel, sequences: list[TrainingSequence]) -> None:
    silent = replace(sequences[0], response_mask=(0, 0, 0))
    draw = replace(sequences[0], advantage=0.0)
    metrics = update(make_model(), [*sequences, silent, draw], config=UpdateConfig(epochs=2))
    assert metrics.counters() == {
        "optimizer_steps": 2,
        "microbatches": 2,
        "sequences": 7,
        "dropped_zero_advantage": 1,
        "dropped_untrained": 1,
        "dropped_zero_weight": 0,
        "trained_tokens": 48,
        "sequence_tokens": 2 * (8 + 6 + 11 + 6 + 5 + 11 + 11),
        "input_tokens": 2 * (5 + 2 + 0 + 4 + 2 + 2 + 2 + 10 + 10),
        "shares_prompts": 1,
    }
    assert metrics.metrics()["tokens_per_second"] == pytest.approx(metrics.sequence_tokens / metrics.seconds)


def test_a_role_with_weight_0_is_left_out_and_others_are_scaled(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    """Of seven sequences one is a reflection; without it 23 of 24 tokens are trained."""
    model = make_model()
    rows = sampled_by(model, [*sequences[:1], replace(sequences[1], role="reflection"), *sequences[2:]])
    objective = ObjectiveConfig.model_validate(
        {"roles": {"reflection": {"weight": 0.0}, "first_attempt": {"weight": 2.0}}}
    )
    metrics = update(model, rows, objective)
    assert (metrics.sequences, metrics.dropped_zero_weight, metrics.trained_tokens) == (6, 1, 23)
    assert metrics.policy_loss == pytest.approx(2 * -(2.6 + 0.5) / 23, abs=1e-5)
    assert metrics.roles.keys() == {"first_attempt"}
    assert metrics.metrics()["entropy_first_attempt"] == pytest.approx(metrics.entropy)
    assert metrics.metrics()["clip_fraction_first_attempt"] == 0.0


def test_a_regularized_role_is_trained_without_advantage(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    rows = [replace(row, advantage=0.0) for row in sequences]
    rows[0] = replace(rows[0], role="reflection")
    objective = ObjectiveConfig.model_validate({"roles": {"reflection": {"entropy_coefficient": 0.1}}})
    metrics = update(make_model(), rows, objective)
    assert (metrics.sequences, metrics.dropped_zero_advantage) == (1, 6)


@pytest.mark.parametrize(
    ("normalization", "live", "whole"),
    [
        ("token_mean", 2.6 / 24, 2.6 / 32),
        ("sequence_mean", 1.6 / 7, 1.6 / 10),
        ("sequence_sum", 2.6 / 7, 2.6 / 10),
    ],
)
def test_rows_without_advantage_count_in_the_mean_where_the_normalizer_has_all_rows(
    make_model: MakeModel,
    sequences: list[TrainingSequence],
    normalization: str,
    live: float,
    whole: float,
) -> None:
    """Seven sequences of 24 tokens have an advantage, three of 3, 3 and 2 tokens have none. On the sampler's
    own policy the loss is minus the mean advantage; advantages add up to 2.6 over tokens, to 1.6 over
    sequences."""
    model = make_model()
    still = [replace(sequences[place], advantage=0.0) for place in (0, 4, 3)]
    rows = sampled_by(model, [*sequences, *still])
    silent = replace(rows[0], response_mask=(0, 0, 0))  # never counts
    for normalizer, expected in (("live_rows", live), ("all_rows", whole)):
        objective = ObjectiveConfig.model_validate(
            {"normalizer": normalizer, "loss_normalization": normalization}
        )
        metrics = update(make_model(), [*rows, silent], objective)
        assert metrics.policy_loss == pytest.approx(-expected, abs=1e-5)


def test_every_sequence_is_recorded_as_trained_or_with_the_reason(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model = make_model()
    trained = sampled_by(model, sequences)
    others = [
        replace(trained[0], response_mask=(0, 0, 0)),
        replace(trained[0], advantage=0.0),
        replace(trained[0], role="reflection"),
    ]
    objective = ObjectiveConfig.model_validate({"roles": {"reflection": {"weight": 0.0}}})
    metrics = update(model, [*others, *trained], objective)
    records = metrics.records
    assert [record.not_trained for record in records] == [
        "no_tokens",
        "zero_advantage",
        "zero_weight",
        *[None] * 7,
    ]
    assert [record.weight for record in records[:4]] == [1.0, 1.0, 0.0, 1.0]
    assert records[0].loss is records[0].mean_ratio is records[0].entropy is None
    assert [record.trained_tokens for record in records[3:]] == [3, 1, 3, 2, 3, 3, 9]
    assert sum(record.trained_tokens for record in records) == metrics.trained_tokens
    # The first has 3 of 24 tokens and advantage 1, and its ratio is 1.
    assert records[3].loss == pytest.approx(-3 / 24, abs=1e-5)
    assert sum(record.loss or 0.0 for record in records) == pytest.approx(metrics.policy_loss, abs=1e-6)
    assert records[3].mean_ratio == pytest.approx(1.0, abs=1e-5)
    assert (records[3].clipped_share, records[3].steps) == (0.0, 1)
    assert records[3].mismatch == pytest.approx(0.0, abs=1e-5)
    entropies = sum((record.entropy or 0.0) * record.trained_tokens for record in records) / 24
    assert entropies == pytest.approx(metrics.entropy, rel=1e-6)
    assert records[3].token_logprobs is None


def test_a_record_adds_up_the_steps_of_all_epochs(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    """Behaviour log-probabilities of -3 against about ln 31: the mismatch is that before the first step."""
    rows = [replace(row, advantage=10 * row.advantage) for row in sequences]
    metrics = update(make_model(), rows, config=UpdateConfig(epochs=3, minibatches=2), learning_rate=1e-2)
    assert [record.steps for record in metrics.records] == [3] * 7
    assert sum(record.trained_tokens for record in metrics.records) == metrics.trained_tokens == 3 * 24
    ratios = sum((record.mean_ratio or 0.0) * record.trained_tokens for record in metrics.records) / 72
    clipped = sum((record.clipped_share or 0.0) * record.trained_tokens for record in metrics.records) / 72
    assert (ratios, clipped) == pytest.approx((metrics.ratio_mean, metrics.clip_fraction), rel=1e-5)
    assert metrics.clip_fraction > 0
    # Only the sequences of the first minibatch were processed before a step.
    seen = [record.mismatch for record in metrics.records if record.mismatch is not None]
    assert 0 < len(seen) < 7
    decoupled = ObjectiveConfig(correction=DecoupledCorrection(type="decoupled"))
    known = update(make_model(), rows, decoupled, UpdateConfig(epochs=3, minibatches=2))
    assert all(record.mismatch is not None for record in known.records)


def test_tokens_are_recorded_as_they_were_before_the_first_step(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model = make_model()
    rows = sampled_by(model, sequences)
    metrics = update(model, rows, config=UpdateConfig(epochs=2, record_tokens=True))
    for row, record in zip(rows, metrics.records, strict=True):
        assert record.token_logprobs == pytest.approx(row.behaviour_logprobs, abs=1e-5)
        assert record.token_entropies is not None
        assert [entropy > 0 for entropy in record.token_entropies] == [bit == 1 for bit in row.response_mask]


def test_no_advantage_no_step(make_model: MakeModel, sequences: list[TrainingSequence]) -> None:
    model = make_model()
    start = weights(model)
    decoupled = ObjectiveConfig(correction=DecoupledCorrection(type="decoupled"))
    for objective in (ObjectiveConfig(), decoupled):
        rows = [replace(row, advantage=0.0) for row in sequences]
        metrics = update(model, rows, objective, UpdateConfig(epochs=2))
        assert metrics.optimizer_steps == 0
        assert metrics.dropped_zero_advantage == 7
    assert torch.equal(weights(model), start)


def test_kl_pulls_to_the_reference_where_there_is_no_advantage(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model, reference = make_model(), make_model()
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(3)
    rows = sampled_by(model, [replace(row, advantage=0.0) for row in sequences])
    objective = ObjectiveConfig(kl_coefficient=1.0, kl_estimator="k2")
    divergences = [update(model, rows, objective, reference=reference).kl_loss for _ in range(4)]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[-1] < 0.9 * divergences[0]


def test_kl_in_the_reward_gives_tokens_an_advantage(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    """The reference gives each of 31 tokens the same probability. On the sampler's own policy the loss is
    minus the mean advantage; a token of log-ratio k at place t of a sequence takes part in the advantages of
    t tokens."""
    model, uniform = make_model(), make_model()
    with torch.no_grad():
        uniform.get_output_embeddings().weight.zero_()
    rows = sampled_by(model, sequences)
    still = replace(rows[0], advantage=0.0)  # counts, since its KL gives it an advantage
    lost = 0.0
    for row in (*rows, still):
        ratios = [row.behaviour_logprobs[place] + math.log(31) for place in row.trained_offsets]
        lost += 0.5 * sum(place * ratio for place, ratio in enumerate(ratios, start=1))
    for normalizer in ("live_rows", "all_rows"):
        objective = ObjectiveConfig.model_validate(
            {"kl_coefficient": 0.5, "kl_in": "reward", "normalizer": normalizer}
        )
        metrics = update(make_model(), [*rows, still], objective, reference=uniform)
        assert metrics.policy_loss == pytest.approx(-(2.6 - lost) / 27, abs=1e-5)
        assert metrics.kl_loss > 0
    # Replayed tokens lose nothing, so that one without an advantage has no part in the loss but its mean.
    replayed = replace(still, role="replay")
    loss = ReplayLoss(role="replay", corrected=True, shaping_beta=None, weight_cap=None, clip=True)
    metrics = update(make_model(), [*rows, replayed], objective, reference=uniform, replay=loss)
    of_replayed = sum(0.5 * place * ratio for place, ratio in enumerate(ratios, start=1))
    assert metrics.policy_loss == pytest.approx(-(2.6 - lost + of_replayed) / 27, abs=1e-5)
    # Nor do they where nothing of the update says that something is replayed, as with lessons by weights.
    metrics = update(make_model(), [*rows, replayed], objective, reference=uniform)
    assert metrics.policy_loss == pytest.approx(-(2.6 - lost + of_replayed) / 27, abs=1e-5)
    # The advantage of a row stays that of its group, and a role may do without.
    only = ObjectiveConfig.model_validate(
        {"kl_in": "reward", "roles": {"reflection": {"kl_coefficient": 0.5}}}
    )
    metrics = update(make_model(), [*rows, still], only, reference=uniform)
    assert metrics.policy_loss == pytest.approx(-2.6 / 24, abs=1e-5)


def test_minibatches_make_steps_of_whole_prompts(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    metrics = update(make_model(), sequences, config=UpdateConfig(epochs=2, minibatches=3))
    assert metrics.optimizer_steps == 6
    # Four prompts give at most four passes, and each prompt is in the input only once.
    metrics = update(make_model(), sequences, config=UpdateConfig(minibatches=9))
    assert metrics.optimizer_steps == 4
    assert metrics.input_tokens == 37


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_decoupled_ratio_starts_at_one_whatever_the_sampler_said(
    make_model: MakeModel, sequences: list[TrainingSequence], level: str
) -> None:
    correction = DecoupledCorrection.model_validate({"type": "decoupled", "level": level, "cap": 1.5})
    rows = [
        replace(row, behaviour_logprobs=tuple(value - 0.7 for value in row.behaviour_logprobs))
        for row in sampled_by(make_model(), sequences)
    ]
    metrics = update(make_model(), rows, ObjectiveConfig(correction=correction))
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-6)
    assert metrics.mismatch_mean == pytest.approx(0.7, abs=1e-5)
    assert (metrics.importance_mean, metrics.importance_capped) == (1.5, 1.0)  # exp(0.7) is 2.01
    two_steps = update(make_model(), rows, ObjectiveConfig(correction=correction), UpdateConfig(epochs=2))
    assert two_steps.ratio_mean != 1.0
    assert two_steps.importance_mean == 1.5


@pytest.mark.parametrize("microbatch_tokens", [1000, 12])
def test_the_gradient_of_a_sequence_is_its_ratio_times_that_of_its_mean_log_probability(
    make_model: MakeModel, sequences: list[TrainingSequence], microbatch_tokens: int
) -> None:
    """GSPO, eq. 5: the mean over sequences of s A, with s = exp(mean log-ratio), by autograd in one piece."""
    objective = ObjectiveConfig(
        ratio="sequence", clip_low=0.9, clip_high=9.0, loss_normalization="sequence_mean"
    )
    config = UpdateConfig(microbatch_tokens=microbatch_tokens)
    model = make_model()
    losses = []
    for row in sequences:
        tokens = torch.tensor([*row.prompt_token_ids, *row.response_token_ids])
        logits = model(tokens[None]).logits[0, len(row.prompt_token_ids) - 1 : -1]
        found = logits.log_softmax(-1).gather(1, torch.tensor(row.response_token_ids)[:, None])[:, 0]
        trained = [place for place, bit in enumerate(row.response_mask) if bit]
        losses.append(-(found[trained] + 3.0).mean().exp() * row.advantage)
    loss = torch.stack(losses).mean()
    loss.backward()
    norm = torch.nn.utils.get_total_norm([w.grad for w in model.parameters() if w.grad is not None])
    metrics = update(make_model(), sequences, objective, config)
    assert metrics.policy_loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert metrics.grad_norm == pytest.approx(float(norm), rel=1e-4)
    # Under `decoupled` the first ratio is 1, whatever the sampler said.
    correction = DecoupledCorrection(type="decoupled", cap=9.0)
    decoupled = objective.model_copy(update={"correction": correction})
    assert update(make_model(), sequences, decoupled, config).ratio_mean == pytest.approx(1.0)
    later = update(make_model(), sequences, decoupled, config.model_copy(update={"epochs": 2}))
    assert later.ratio_mean != pytest.approx(1.0)


def test_the_same_seed_gives_the_same_bits(make_model: MakeModel, sequences: list[TrainingSequence]) -> None:
    models = [make_model(), make_model()]
    for model in models:
        update(model, sequences, config=UpdateConfig(epochs=2, minibatches=2))
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_divergence_leaves_the_weights_alone(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model = make_model()
    start = weights(model)
    broken = replace(sequences[0], behaviour_logprobs=(math.nan,) * 3)
    with pytest.raises(TrainingDiverged, match=r"step 1: policy_loss nan.*trajectory-0"):
        update(model, [broken, *sequences[1:]])
    assert torch.equal(weights(model), start)


def test_missing_inputs_are_programming_errors(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    with pytest.raises(ValueError, match="trajectory-0 has no log-probabilities"):
        update(make_model(), [replace(sequences[0], behaviour_logprobs=())])
    with pytest.raises(ValueError, match="no reference model"):
        update(make_model(), sequences, ObjectiveConfig(kl_coefficient=0.1))


def test_the_reference_is_freed_before_the_first_step(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    loaded: list[weakref.ref[PreTrainedModel]] = []
    alive_at_steps: list[bool] = []

    def load() -> PreTrainedModel:
        reference = make_model()
        loaded.append(weakref.ref(reference))
        return reference

    model = make_model()
    work = Reinforcement(sequences, ObjectiveConfig(kl_coefficient=0.1), UpdateConfig(minibatches=2), seed=0)
    learner = Learner(model, PolicyOptimizer(model, OptimizerConfig()))
    reinforce(learner, work, load, lambda _step, _loss: alive_at_steps.append(loaded[0]() is not None))
    assert (len(loaded), alive_at_steps) == (1, [False, False])


def test_attention_of_an_update_is_reported(make_model: MakeModel, sequences: list[TrainingSequence]) -> None:
    assert update(make_model(), sequences).attention == "blocks"
