from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig
from erl_pipeline.trainers.interface import SupervisedTraining
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.supervised import _batches, fine_tune_supervised
from erl_pipeline.trainers.metrics import FineTuneMetrics
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import TrainingDiverged

MakeModel = Callable[[], PreTrainedModel]


def tune(model: PreTrainedModel, rows: list[TrainingSequence], config: FineTuneConfig) -> FineTuneMetrics:
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-3))
    return fine_tune_supervised(Learner(model, optimizer), SupervisedTraining(rows, config, seed=0))


def test_the_first_loss_is_the_mean_cross_entropy_of_the_trained_tokens(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model = make_model()
    losses: list[torch.Tensor] = []
    for row in sequences:
        log_softmax = (
            model(torch.tensor([row.prompt_token_ids + row.response_token_ids])).logits[0].log_softmax(-1)
        )
        first = len(row.prompt_token_ids) - 1
        losses += [
            -log_softmax[first + offset, row.response_token_ids[offset]] for offset in row.trained_offsets
        ]
    expected = float(torch.stack(losses).mean().detach())
    metrics = tune(model, sequences, FineTuneConfig(steps=3, microbatch_tokens=15))
    assert metrics.first_loss == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(math.log(31), abs=0.1)
    assert metrics.last_loss < metrics.loss < metrics.first_loss
    assert (metrics.optimizer_steps, metrics.rows, metrics.trained_tokens) == (3, 7, 3 * 24)


def test_weights_scale_the_loss_of_their_rows(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    once = FineTuneConfig(steps=1)
    halved = [replace(row, weight=0.5) for row in sequences]
    whole = tune(make_model(), sequences, once).loss
    assert tune(make_model(), halved, once).loss == pytest.approx(whole / 2, rel=1e-5)


def test_batches_deal_out_all_rows_before_any_comes_again(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    # Responses of 1 to 6 tokens: two steps of three rows train 21 tokens only if no row occurs twice.
    rows = [
        replace(sequences[0], response_token_ids=(7,) * n, response_mask=(1,) * n, behaviour_logprobs=())
        for n in range(1, 7)
    ]
    metrics = tune(make_model(), rows, FineTuneConfig(steps=2, batch_rows=3))
    assert metrics.optimizer_steps == 2
    assert metrics.trained_tokens == 21


@pytest.mark.parametrize(("rows", "size"), [(7, 4), (15, 8), (31, 16), (9, 4)])
def test_a_pass_has_all_rows_also_where_the_last_batch_is_not_full(rows: int, size: int) -> None:
    """The last step of a pass has the rows that are left, and is filled from the next pass."""
    passes, seen = 3, list[int]()
    for batch in _batches(range(rows), FineTuneConfig(steps=100, batch_rows=size, epochs=passes), seed=0):
        assert len(set(batch)) == size
        seen += batch
    for number in range(passes):
        assert sorted(seen[number * rows : (number + 1) * rows]) == list(range(rows))


def test_few_rows_get_few_steps(make_model: MakeModel, sequences: list[TrainingSequence]) -> None:
    config = FineTuneConfig(steps=3, batch_rows=4, epochs=1.0)
    # The seven rows of the fixture are two batches of four at the most, three of them one.
    assert tune(make_model(), sequences, config).optimizer_steps == 2
    assert tune(make_model(), sequences[:3], config).optimizer_steps == 1


def test_the_learning_rate_of_supervised_steps_may_be_another(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    def moved(learning_rate: float | None) -> float:
        model, before = make_model(), make_model()
        tune(model, sequences, FineTuneConfig(steps=1, learning_rate=learning_rate))
        pairs = zip(model.parameters(), before.parameters(), strict=True)
        return max(float((weight - old).abs().max().detach()) for weight, old in pairs)

    # The first step of AdamW moves a weight by the learning rate, whatever the size of its gradient.
    assert moved(None) == pytest.approx(1e-3, rel=0.01)
    assert moved(2e-4) == pytest.approx(2e-4, rel=0.01)


def test_each_step_may_have_a_learning_rate_of_its_own(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    """A rate of 0 in the second of two steps leaves the result of the first."""

    def trained(steps: int, rate: Callable[[int], float] | None) -> torch.Tensor:
        model = make_model()
        work = SupervisedTraining(sequences, FineTuneConfig(steps=steps), 0, rate)
        fine_tune_supervised(
            Learner(model, PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-3))), work
        )
        weight: torch.Tensor = model.get_input_embeddings().weight
        return weight.detach()

    once = trained(1, None)
    assert torch.equal(trained(2, lambda step: 1e-3 if step == 1 else 0.0), once)
    assert not torch.equal(trained(2, None), once)


def test_nothing_to_train_leaves_the_model_alone(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    model, untouched = make_model(), make_model()
    silent = [replace(sequences[0], response_mask=(0, 0, 0))]
    for rows in ([], silent):
        metrics = tune(model, rows, FineTuneConfig())
        assert (metrics.optimizer_steps, metrics.rows, metrics.loss) == (0, 0, 0.0)
    assert metrics.dropped_untrained == 1
    for weight, expected in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_divergence_is_reported(make_model: MakeModel, sequences: list[TrainingSequence]) -> None:
    model = make_model()
    with torch.no_grad():
        next(model.parameters())[7] = math.nan
    with pytest.raises(TrainingDiverged, match="step 1: loss nan"):
        tune(model, sequences, FineTuneConfig())


def test_every_row_is_recorded_with_its_share_of_the_loss_or_why_it_was_not_trained(
    make_model: MakeModel, sequences: list[TrainingSequence]
) -> None:
    rows = [replace(sequences[0], response_mask=(0, 0, 0)), *sequences]
    metrics = tune(make_model(), rows, FineTuneConfig(steps=1))
    assert metrics.records[0].not_trained == "no_tokens"
    assert sum(record.loss or 0.0 for record in metrics.records) == pytest.approx(metrics.loss, abs=1e-6)
    assert sum(record.trained_tokens for record in metrics.records) == metrics.trained_tokens
    assert metrics.records[1].entropy == pytest.approx(math.log(31), abs=0.3)
    assert metrics.records[1].mean_ratio is metrics.records[1].mismatch is None
    few = tune(make_model(), sequences, FineTuneConfig(steps=2, batch_rows=3)).records
    assert [record.steps for record in few].count(1) == 6
    assert [record.not_trained for record in few if not record.steps] == ["not_drawn"]
