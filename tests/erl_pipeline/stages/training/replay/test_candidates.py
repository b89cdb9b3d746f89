"""Entropies of stored attempts; which attempt is chosen, and which are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel

from erl_pipeline.config.replay import Entropy
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.training.replay.draw import usable_members
from erl_pipeline.stages.training.replay.experience import Candidate, require_trainable, with_trainer_logprobs
from erl_pipeline.stages.training.replay.select_replay import mean_entropies, pick_one
from erl_pipeline.trainers.interface import Trainer
from erl_pipeline.trainers.local.preparation import ready_for_training
from erl_pipeline.trainers.local.tokens import token_logprobs
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import InputError
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.stages.training.replay.attempts import attempt
from tests.random_models import random_llama

DISTRIBUTIONS = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25] * 4])
SAMPLED = torch.tensor([0, 1])


class TwoTokens:
    """Gives every sequence the two tokens of `DISTRIBUTIONS`."""

    def __init__(self) -> None:
        scores = token_logprobs(
            torch.nn.Identity(), DISTRIBUTIONS.clamp(min=1e-30).log(), SAMPLED, torch.ones(2)
        )
        self._logprobs, self._entropies = (each.numpy() for each in scores)

    def logprobs(self, sequences: Sequence[TrainingSequence], _tokens: int) -> list[np.ndarray]:
        return [self._logprobs for _ in sequences]

    def entropies(self, sequences: Sequence[TrainingSequence], _tokens: int) -> list[np.ndarray]:
        return [self._entropies for _ in sequences]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vocabulary", 1.2130),  # the mean of 1.0397 and log 4
        ("nll", (math.log(2) + math.log(4)) / 2),
        ("sampled", (0.5 * math.log(2) + 0.25 * math.log(4)) / 2),
    ],
)
def test_the_three_entropies_of_a_response(kind: Entropy, expected: float) -> None:
    row = attempt("task", 0, True)
    (found,) = mean_entropies([row], cast(Trainer, TwoTokens()), kind, 100)
    assert found == pytest.approx(expected, abs=5e-5)


def windowed() -> PreTrainedModel:
    """A model whose sequences are padded rows."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, sliding_window=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


@pytest.mark.parametrize("make", [lambda: random_llama(31), windowed])
def test_neither_padding_nor_the_environments_tokens_have_a_part_in_it(
    make: Callable[[], PreTrainedModel],
) -> None:
    model = make()
    short = attempt("task", 0, True, tokens=(5, 6, 7))
    short = replace(short, prompt_token_ids=(3, 4))
    long = replace(attempt("task", 1, True, tokens=tuple(range(4, 24))), prompt_token_ids=(3, 9, 9, 9))
    told = replace(
        short,
        response_token_ids=(5, 6, 7, 8, 9),
        response_mask=(1, 1, 1, 0, 0),
        behaviour_logprobs=(-1.0,) * 5,
    )

    class Scorer:
        def entropies(self, sequences: Sequence[TrainingSequence], tokens: int) -> list[np.ndarray]:
            with ready_for_training(model, gradient_checkpointing=False) as forward:
                return [each.numpy() for each in forward.sequence_scores(sequences, tokens)[1]]

    def entropies(*rows: Trajectory) -> list[float]:
        return mean_entropies(rows, cast(Trainer, Scorer()), "vocabulary", 1000)

    (alone,) = entropies(short)
    assert entropies(long, short, told)[1:] == pytest.approx([alone, alone], abs=1e-6)
    with torch.no_grad():
        logits = model(torch.tensor([[3, 4, 5, 6]])).logits[0, 1:]
    expected = torch.distributions.Categorical(logits=logits).entropy().mean()
    assert alone == pytest.approx(float(expected), abs=1e-5)


def test_of_equal_entropies_the_first_is_picked() -> None:
    assert pick_one([0.4, 0.2, 0.2, 0.4], "lowest") == 1
    assert pick_one([0.4, 0.2, 0.2, 0.4], "highest") == 0


MEMBERS = pl.DataFrame(
    {"task_id": ["a", "b", "a", "a"], "trajectory_id": ["1", "2", "3", "4"], "iteration": [1, 2, 3, 5]}
)


def test_old_members_and_too_many_of_a_task_are_left_out() -> None:
    def kept(max_age: int | None, max_per_task: int | None) -> list[str]:
        return usable_members(MEMBERS, 6, max_age, max_per_task)["trajectory_id"].to_list()

    assert kept(None, None) == ["1", "2", "3", "4"]
    assert kept(3, None) == ["3", "4"]
    assert kept(None, 2) == ["2", "3", "4"]
    assert kept(3, 1) == ["4"]


HELD_OUT = Task("held-out", "lake", "frozen_lake", {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task_id": "held-out"}, r"trajectory a-1-0 of iteration 1 is of task held-out, which is held out"),
        ({"task_payload": "{}"}, r"is of task a, which is held out \(evaluation.tasks\)"),
        ({"task_id": "strange"}, "is of task strange, which is no training task"),
        (
            {"temperature": 0.0},
            r"no log-probabilities of sampled tokens \(temperature 0\), which replay",
        ),
        ({"behaviour_logprobs": (math.nan, -1.0, -1.0)}, "has no log-probabilities of sampled tokens"),
    ],
)
def test_what_must_not_be_trained_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    row = attempt("a", 0, True)
    require_trainable([Candidate(row, "rollouts")], {"a"}, [HELD_OUT])
    with pytest.raises(InputError, match=said):
        require_trainable([Candidate(replace(row, **change), "rollouts")], {"a"}, [HELD_OUT])


def test_an_attempt_without_log_probabilities_of_the_trainer_is_refused() -> None:
    candidate = Candidate(attempt("a", 0, True), "rollouts")
    (found,) = with_trainer_logprobs([candidate], {"a-1-0": (-1.0, -2.0, -3.0)})
    assert found.row.behaviour_logprobs == (-1.0, -2.0, -3.0)
    with pytest.raises(InputError, match=r"trajectory a-1-0 .* replay\.importance: trainer needs them"):
        with_trainer_logprobs([candidate], {"a-1-0": None})
