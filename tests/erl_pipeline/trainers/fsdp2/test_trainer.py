"""Training on two ranks compared with training in one process: losses, weights, moments, files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from erl_pipeline.config.optimizer import FineTuneConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.config.self_distillation import DistillationObjective
from erl_pipeline.policies.checkpoints import StoredPolicy
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.interface import (
    Passes,
    SupervisedTraining,
    Trainer,
    TrainingStart,
)
from erl_pipeline.trainers.local.trainer import LocalTrainer
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import TrainingDiverged
from tests.erl_pipeline.trainers.fsdp2.rows import ROWS, Start, reinforcement

SUPERVISED = SupervisedTraining(ROWS, FineTuneConfig(steps=2, batch_rows=3, microbatch_tokens=12), seed=0)
LORA = LoraConfig(rank=1, alpha=2)
"""A matrix of one row: one of two ranks has it, the other has nothing."""


def on_two(start: TrainingStart, ranks: RankGroup) -> Trainer:
    return Fsdp2Trainer(2, start, ranks)


def files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def assert_close(one: Path, two: Path, tolerance: float = 1e-5) -> None:
    """Assert that files are equal, apart from rounding in tensors."""
    assert files(one) == files(two)
    for file in files(one):
        if file.suffix == ".safetensors":
            expected, found = load_file(one / file), load_file(two / file)
            assert expected.keys() == found.keys()
            for name, tensor in expected.items():
                assert found[name].dtype == tensor.dtype, name
                assert torch.allclose(found[name], tensor, rtol=0, atol=tolerance), name
        else:
            assert (one / file).read_bytes() == (two / file).read_bytes(), file


def assert_equal(one: Path, two: Path) -> None:
    assert files(one) == files(two)
    for file in files(one):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


def numbers(metrics: Any) -> dict[str, float]:
    """The numbers that depend neither on time nor on how batches are cut."""
    cut = ("seconds", "tokens_per_second", "microbatches", "input_tokens")
    return {
        name: value
        for name, value in vars(metrics).items()
        if isinstance(value, float | int) and name not in cut
    }


CASES = {
    "tied": ("llama", None, {}),
    "own head": ("gpt2", None, {}),
    "checkpointing": ("llama", None, {"gradient_checkpointing": True}),
    "adapter": ("llama", LORA, {}),
}


def keep(losses: list[float], _step: int, loss: float) -> None:
    losses.append(loss)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_learn_what_one_process_learns(
    case: str, ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    model, lora, settings = CASES[case]
    beginning = start(first / model, base=first / model, lora=lora, weight_decay=0.1)
    assert beginning.context is not None
    reference: StoredPolicy | Literal["own_base"] = "own_base" if lora else beginning.context.stored
    work = reinforcement(epochs=2, minibatches=2, record_tokens=True, **settings)
    objective = work.objective.model_copy(update={"kl_coefficient": 0.1, "entropy_coefficient": 0.01})
    work = replace(work, objective=objective, reference=reference)
    steps: dict[str, list[float]] = {"one": [], "two": []}
    found: dict[str, Any] = {}
    for name, trainer in (("one", LocalTrainer(beginning)), ("two", on_two(beginning, ranks))):
        updated = trainer.reinforce(work, partial(keep, steps[name]))
        tuned = trainer.fine_tune_supervised(SUPERVISED)
        trainer.save(tmp_path / name)
        found[name] = (updated, tuned, trainer.logprobs(ROWS, 12), trainer.entropies(ROWS, 12))
    assert steps["two"] == pytest.approx(steps["one"], abs=1e-5)
    assert len(steps["two"]) == 4
    for one, two in zip(found["one"][:2], found["two"][:2], strict=True):
        assert numbers(two) == pytest.approx(numbers(one), abs=1e-5)
        for expected, record in zip(one.records, two.records, strict=True):
            assert record.loss == pytest.approx(expected.loss, abs=1e-5)
            assert record.mean_ratio == pytest.approx(expected.mean_ratio, abs=1e-5)
            assert record.token_logprobs == pytest.approx(expected.token_logprobs, abs=1e-5)
    for one, two in zip(found["one"][2:], found["two"][2:], strict=True):
        assert [each.shape for each in two] == [(2,), (3,), (4,), (5,), (6,)]
        assert np.concatenate(two) == pytest.approx(np.concatenate(one), abs=1e-5)
    assert_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("case", ["tied", "checkpointing", "adapter"])
def test_gradients_that_are_added_up_once_in_a_step_give_the_same_update(
    case: str, ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """Each rank has two of the four microbatches of a step: it keeps the gradients of the first."""
    model, lora, settings = CASES[case]
    beginning = start(first / model, base=first / model, lora=lora, weight_decay=0.1)
    work = reinforcement(epochs=2, microbatch_tokens=8, **settings)
    passes = Passes(gradient_sums="step")
    trainers = {
        "one": LocalTrainer(beginning),
        "each": on_two(beginning, ranks),
        "step": Fsdp2Trainer(2, beginning, ranks, passes=passes),
    }
    found = {}
    for name, trainer in trainers.items():
        found[name] = trainer.reinforce(work)
        trainer.save(tmp_path / name)
    assert found["step"].microbatches == 2 * 4
    for name in ("each", "step"):
        assert numbers(found[name]) == pytest.approx(numbers(found["one"]), abs=1e-5)
        assert_close(tmp_path / "one", tmp_path / name)


def test_low_precision_weights_have_their_fp32_copy_on_the_rank_that_has_them(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """A step of 1e-6 is lost in most bf16 weights and kept in the fp32 copy, which is in the same place in
    the file as with one process."""
    beginning = start(first / "llama", dtype="bfloat16", learning_rate=1e-6)
    for name, trainer in (("one", LocalTrainer(beginning)), ("two", on_two(beginning, ranks))):
        trainer.reinforce(reinforcement())
        trainer.save(tmp_path / name)
    expected, found = (load_file(tmp_path / name / "optimizer.safetensors") for name in ("one", "two"))
    assert expected.keys() == found.keys()
    name = "master.model.embed_tokens.weight"
    moved = (
        found[name]
        - load_file(first / "llama/model/model.safetensors")["model.embed_tokens.weight"]
        .to(torch.bfloat16)
        .float()
    )
    assert 0 < float(moved.abs().max()) < 2e-6
    assert torch.allclose(found[name], expected[name], rtol=0, atol=2e-6)
    assert (
        load_file(tmp_path / "two/model/model.safetensors").keys()
        == load_file(tmp_path / "one/model/model.safetensors").keys()
    )


def test_equal_work_gives_equal_bytes(ranks: RankGroup, first: Path, start: Start, tmp_path: Path) -> None:
    for name in ("once", "again"):
        trainer = on_two(start(first / "llama"), ranks)
        trainer.reinforce(reinforcement(epochs=2))
        trainer.fine_tune_supervised(SUPERVISED)
        trainer.save(tmp_path / name)
    assert_equal(tmp_path / "once", tmp_path / "again")


def test_a_checkpoint_that_is_read_and_written_again_keeps_its_bytes(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """Two ranks read weights, moments and fp32 copies that one process wrote, and write them again."""
    for dtype in ("float32", "bfloat16"):
        one = LocalTrainer(start(first / "llama", dtype=dtype))
        one.reinforce(reinforcement())
        one.save(tmp_path / dtype)
        on_two(start(tmp_path / dtype, dtype=dtype), ranks).save(tmp_path / f"{dtype}-again")
        assert_equal(tmp_path / dtype, tmp_path / f"{dtype}-again")


@pytest.mark.usefixtures("quick_ranks")
def test_training_goes_on_with_another_number_of_ranks_and_is_that_of_one_process(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    whole = LocalTrainer(start(first / "llama"))
    for part in ("1", "2", "3"):
        whole.reinforce(reinforcement())
        whole.save(tmp_path / part)
    two = on_two(start(first / "llama"), ranks)
    two.reinforce(reinforcement())
    two.save(tmp_path / "1-on-two")
    single = Fsdp2Trainer(1, start(tmp_path / "1-on-two"))
    single.reinforce(reinforcement())
    single.save(tmp_path / "2-on-one")
    again = on_two(start(tmp_path / "2-on-one"), ranks)
    again.reinforce(reinforcement())
    again.save(tmp_path / "3-on-two")
    for part, place in (("1", "two"), ("2", "one"), ("3", "two")):
        assert_close(tmp_path / part, tmp_path / f"{part}-on-{place}")
    assert load_file(tmp_path / "3-on-two/optimizer.safetensors")["step.model.norm.weight"] == 3.0

    # An error in a rank is raised here with its own type; after it the rank gets no more work.
    broken = replace(ROWS[0], behaviour_logprobs=(float("nan"),) * 2)
    with pytest.raises(TrainingDiverged, match=r"diverged at optimizer step 1: .*row-0"):
        single.reinforce(replace(reinforcement(), sequences=[broken]))
    single.close()


def test_gradients_are_clipped_by_their_norm_over_all_ranks(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """After one step the first moment is (1 - 0.9) of the clipped gradient, whose norm is 0.5. If each rank
    clipped by itself, the norm of its own rows would be 0.5, and the total norm 0.07 in the moment."""
    trainer = on_two(start(first / "llama", max_grad_norm=0.5), ranks)
    assert trainer.reinforce(reinforcement()).grad_norm > 0.5
    trainer.save(tmp_path / "1")
    moments = load_file(tmp_path / "1/optimizer.safetensors")
    squares = sum(
        float(value.square().sum()) for name, value in moments.items() if name.startswith("exp_avg.")
    )
    assert math.sqrt(squares) == pytest.approx(0.05, abs=1e-6)


def test_a_token_weighs_the_same_on_a_rank_with_few_tokens(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """A policy to which all 7 words are equally probable loses log 7 at each token. With three tokens of
    weight 1 and one of weight 2 that is (3 x 1 + 1 x 2) / 4 = 1.25 log 7; the mean of two ranks' means would
    be 1.5 log 7."""
    even = tmp_path / "even"
    (even / "model").mkdir(parents=True)
    for file in (first / "llama/model").iterdir():
        (even / "model" / file.name).write_bytes(file.read_bytes())
    path = even / "model/model.safetensors"
    zeros = {name: torch.zeros_like(value) for name, value in load_file(path).items()}
    save_file(zeros, path, {"format": "pt"})
    rows = [supervised((1, 3), (5, 5, 5), 1.0), supervised((1, 4), (6,), 2.0)]
    work = SupervisedTraining(rows, FineTuneConfig(steps=1, microbatch_tokens=4), seed=0)
    metrics = on_two(start(even), ranks).fine_tune_supervised(work)
    assert metrics.microbatches == 2
    assert metrics.loss == pytest.approx(1.25 * math.log(7), abs=1e-6)
    # The rank without a row takes part in the passes of the other.
    alone = replace(work, sequences=rows[:1])
    assert on_two(start(even), ranks).fine_tune_supervised(alone).loss == pytest.approx(math.log(7), abs=1e-6)


def supervised(prompt: Sequence[int], response: Sequence[int], weight: float) -> TrainingSequence:
    return TrainingSequence(
        trajectory_id=f"{prompt}",
        role="shown",
        prompt_token_ids=tuple(prompt),
        response_token_ids=tuple(response),
        response_mask=(1,) * len(response),
        behaviour_logprobs=(),
        advantage=1.0,
        weight=weight,
    )


def test_each_step_has_its_own_learning_rate(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """With a rate of 0 from the second step on, two steps leave what one does."""
    for name, steps in (("one step", 1), ("two steps", 2)):
        settings = SUPERVISED.settings.model_copy(update={"steps": steps, "batch_rows": None})
        trainer = on_two(start(first / "llama"), ranks)
        work = replace(SUPERVISED, settings=settings, rate=lambda step: 1e-3 if step == 1 else 0.0)
        assert trainer.fine_tune_supervised(work).optimizer_steps == steps
        trainer.save(tmp_path / name)
    assert_equal(tmp_path / "one step/model", tmp_path / "two steps/model")


def test_without_a_row_nothing_is_trained_and_nothing_scored(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    trainer = on_two(start(first / "llama"), ranks)
    untrained = replace(ROWS[0], response_mask=(0, 0))
    assert [list(values) for values in trainer.logprobs([untrained], 12)] == [[]]
    assert trainer.reinforce(replace(reinforcement(), sequences=[untrained])).optimizer_steps == 0
    assert trainer.fine_tune_supervised(replace(SUPERVISED, sequences=[])).optimizer_steps == 0
    assert trainer.trained_policy() is None  # it is in other processes
    trainer.save(tmp_path / "after")
    weights = "model/model.safetensors"
    assert (tmp_path / "after" / weights).read_bytes() == (first / "llama" / weights).read_bytes()


def test_two_ranks_learn_from_a_teacher_what_one_process_learns(
    ranks: RankGroup, first: Path, start: Start, tmp_path: Path
) -> None:
    """The teacher is another policy: the same weights, with which the first update began."""
    beginning = start(first / "llama")
    assert beginning.context is not None
    found: dict[str, Any] = {}
    work = replace(reinforcement(), distillation=DistillationObjective(coefficient=1.0, grad_norms=True))
    for name, trainer in (("one", LocalTrainer(beginning)), ("two", on_two(beginning, ranks))):
        trainer.reinforce(reinforcement())
        own = trainer.token_scores(ROWS, 12, top_k=2)
        asked = [replace(row, teacher=scores) for row, scores in zip(ROWS, own, strict=True)]
        scores = trainer.token_scores(asked, 12, policy=beginning.context.stored)
        rows = [replace(row, teacher=each, advantage=0.0) for row, each in zip(ROWS, scores, strict=True)]
        found[name] = (own, scores, trainer.reinforce(replace(work, sequences=rows)))
        trainer.save(tmp_path / name)
    for one, two in zip(found["one"][:2], found["two"][:2], strict=True):
        for expected, each in zip(one, two, strict=True):
            assert np.array_equal(each.ids, expected.ids)
            for column in ("logprobs", "entropies", "id_logprobs", "tail_logprobs"):
                assert getattr(each, column) == pytest.approx(getattr(expected, column), abs=1e-5), column
    assert found["two"][2].metrics()["distillation_loss"] > 0
    assert numbers(found["two"][2]) == pytest.approx(numbers(found["one"][2]), abs=1e-5)
    one, two = (numbers(found[name][2].distillation) for name in ("one", "two"))
    assert two == pytest.approx(one, abs=1e-5)
    assert_close(tmp_path / "one", tmp_path / "two")
