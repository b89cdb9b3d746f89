"""The trainer as stages use it: it reads a checkpoint's folder and writes the next one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.adapters import add_fresh_adapter, read_adapter
from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
from erl_pipeline.policies.pretrained import LoadedPolicy, load_policy
from erl_pipeline.trainers.interface import Reinforcement, SupervisedTraining, Trainer, TrainingStart
from erl_pipeline.trainers.local import TRAINER, LocalTrainerConfig
from erl_pipeline.trainers.sequences import TrainingSequence
from tests.random_models import WORDS, random_llama, word_tokenizer

LORA = LoraConfig(rank=2, alpha=4)
ROWS = [
    TrainingSequence("good", "attempt", (1, 3), (5, 2), (1, 1), (-2.0, -2.0), 1.0),
    TrainingSequence("bad", "attempt", (1, 3), (6, 2), (1, 1), (-2.0, -2.0), -1.0),
]


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A checkpoint without optimizer state, like the first one of a run."""
    random_llama(len(WORDS), hidden=16, intermediate=16, eos_token_id=2).save_pretrained(tmp_path / "0/model")
    word_tokenizer().save_pretrained(tmp_path / "0/model")
    return tmp_path / "0"


def whole_policy(checkpoint: Path) -> LoadedPolicy:
    return load_policy(checkpoint / "model")


def trainer(
    checkpoint: Path, load: Callable[[Path], LoadedPolicy] = whole_policy, **optimizer: object
) -> Trainer:
    start = TrainingStart(checkpoint, lambda: load(checkpoint), OptimizerConfig.model_validate(optimizer))
    return TRAINER.open(LocalTrainerConfig(), start)


def reinforcement(rows: Sequence[TrainingSequence] = ROWS, **objective: float) -> Reinforcement:
    return Reinforcement(rows, ObjectiveConfig.model_validate(objective), UpdateConfig(), seed=0)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_trainer_that_is_saved_and_opened_again_goes_on_to_the_same_bytes(
    first: Path, tmp_path: Path, adapted: bool
) -> None:
    def load(checkpoint: Path) -> LoadedPolicy:
        policy = load_policy((first if adapted else checkpoint) / "model")
        if adapted and checkpoint == first:
            add_fresh_adapter(policy.model, LORA, seed=0, base="base")
        elif adapted:
            read_adapter(policy.model, checkpoint / "model", LORA)
        return policy

    supervised = SupervisedTraining(ROWS, FineTuneConfig(steps=2), seed=0)
    steps: list[int] = []
    whole = trainer(first, load)
    assert whole.reinforce(reinforcement(), lambda step, loss: steps.append(step)).optimizer_steps == 1
    whole.save(tmp_path / "1")
    assert whole.fine_tune_supervised(supervised, lambda step, loss: steps.append(step)).optimizer_steps == 2
    whole.save(tmp_path / "2")
    assert steps == [1, 1, 2]
    assert whole.determinism == "bytes"

    whole.save(tmp_path / "2-without", state=False)
    lacking = {path.relative_to(tmp_path / "2-without") for path in (tmp_path / "2-without").rglob("*.*")}
    assert Path("optimizer.json") in lacking
    assert Path("optimizer.safetensors") not in lacking

    again = trainer(tmp_path / "1", load)
    again.fine_tune_supervised(supervised)
    again.save(tmp_path / "2-again")
    files = sorted(path.relative_to(tmp_path / "2") for path in (tmp_path / "2").rglob("*.*"))
    weights = "adapter_model" if adapted else "model"
    assert {Path(f"model/{weights}.safetensors"), Path("optimizer.safetensors")} <= set(files)
    for file in files:
        assert (tmp_path / "2" / file).read_bytes() == (tmp_path / "2-again" / file).read_bytes(), file


@pytest.mark.parametrize("moments", ["shared", "by_use"])
def test_updates_that_follow_each_other_are_those_of_trainers_opened_for_each(
    first: Path, tmp_path: Path, moments: str
) -> None:
    settings = FineTuneConfig(steps=4, batch_rows=1, epochs=1.0, learning_rate=1e-3)
    supervised = SupervisedTraining(ROWS, settings, seed=0)

    def update(one: Trainer, number: int, folder: Path) -> None:
        if number % 2:
            one.reinforce(reinforcement())
        else:
            assert one.fine_tune_supervised(supervised).optimizer_steps == 2
        one.save(folder)

    kept = trainer(first, moments=moments)
    before = first
    for number in (1, 2, 3, 4):
        update(kept, number, tmp_path / f"{number}-kept")
        update(trainer(before, moments=moments), number, tmp_path / f"{number}")
        before = tmp_path / f"{number}"
        for file in ("model/model.safetensors", "optimizer.safetensors", "optimizer.json"):
            assert (before / file).read_bytes() == (tmp_path / f"{number}-kept" / file).read_bytes(), file


def test_logprobs_are_those_of_the_trained_tokens_at_their_temperature(first: Path) -> None:
    rows = [
        replace(ROWS[0], temperature=0.5),
        replace(ROWS[1], response_mask=(0, 0)),
        replace(ROWS[1], response_mask=(0, 1)),
    ]
    model: PreTrainedModel = load_policy(first / "model").model
    with torch.no_grad():
        logits = model(torch.tensor([[1, 3, 5, 2], [1, 3, 6, 2]])).logits
    half, one = (logits[0] / 0.5).log_softmax(-1), logits[1].log_softmax(-1)
    found = trainer(first).logprobs(rows, microbatch_tokens=100)
    assert [values.shape for values in found] == [(2,), (0,), (1,)]
    expected = [float(half[1, 5]), float(half[2, 2]), float(one[2, 2])]
    assert np.concatenate(found) == pytest.approx(expected, abs=1e-5)
    entropies = trainer(first).entropies(rows, microbatch_tokens=100)
    assert [values.shape for values in entropies] == [(2,), (0,), (1,)]
    expected = [float(-(each.exp() * each).sum()) for each in (half[1], half[2], one[2])]
    assert np.concatenate(entropies) == pytest.approx(expected, abs=1e-5)


def test_the_reference_is_loaded_only_for_a_kl_term(first: Path) -> None:
    parts = CheckpointParts("first", "first", first / "model", None)
    weights = WeightsSettings(dtype="float32", lora=None, adapter_seed=None)
    work = replace(reinforcement(kl_coefficient=0.1), reference=StoredPolicy(parts, weights))
    learner = trainer(first)
    assert learner.reinforce(work).kl_loss == pytest.approx(0.0, abs=1e-6)
    assert learner.reinforce(work).kl_loss > 0.0
    with pytest.raises(ValueError, match="no reference model was given"):
        learner.reinforce(reinforcement(kl_coefficient=0.1))


def test_importing_the_plug_in_does_not_import_torch() -> None:
    code = "import sys, erl_pipeline.trainers.local; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
