from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from erl_pipeline.config.policy import ColdStartConfig, TinyPolicyConfig
from erl_pipeline.environments.demonstrations import Examination
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.policies.tiny.cold_start import cold_start

PARTS = ENVIRONMENT.tiny.require(FrozenLakeConfig())
SMALL = TinyPolicyConfig(
    hidden_size=32, heads=1, layers=1, cold_start=ColdStartConfig(steps=30, demonstrations_per_step=8, gate=0)
)


@pytest.mark.parametrize("retries", [None, 0.5])
def test_where_retries_are_shown_the_context_holds_the_failed_attempt_too(
    tmp_path: Path, retries: float | None
) -> None:
    shown = SMALL.cold_start.model_copy(update={"retries": retries})
    cold_start(SMALL.model_copy(update={"cold_start": shown}), PARTS, 0, tmp_path)
    # "trace", 6 steps of 4 words, and how the attempt ended.
    positions = PARTS.context_length + (1 + 24 + 1 if retries else 0)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.n_positions == positions
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == positions


def test_the_loss_falls_and_the_folder_is_a_plain_checkpoint(tmp_path: Path) -> None:
    losses: list[float] = []
    made = cold_start(SMALL, PARTS, 0, tmp_path, on_step=lambda step, steps, loss: losses.append(loss))
    assert len(losses) == made.steps == 30
    assert losses[0] == pytest.approx(3.8, abs=0.2)  # ln(44 words) at the start
    assert losses[-1] < losses[0] - 0.5
    assert made.loss == pytest.approx(sum(losses) / 30)
    assert list(made.shares_right) == ["seen_slots_right"]
    assert 0.0 <= made.shares_right["seen_slots_right"] < 0.7
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.architectures == ["GPT2LMHeadModel"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        torch.manual_seed(len(name))
        cold_start(SMALL, PARTS, seed, tmp_path / name)
    first, again, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again", "other")
    )
    assert first == again
    assert first != other


@dataclass(frozen=True)
class _Fixed:
    """An examiner that always finds this share of right answers."""

    share: float

    def share_right(self, model: object) -> float:
        return self.share


def test_the_rates_do_not_fall_before_each_skill_has_been_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each examination gives a share of right answers of its own: one is passed and the other never.
    found = iter([1.0, 1.0, 0.0])
    monkeypatch.setattr(
        "erl_pipeline.policies.tiny.cold_start.examiner",
        lambda questions, tokenizer: _Fixed(next(found)),
    )
    easy, hard = (Examination(name, lambda stream, settings: [], "") for name in ("easy", "hard"))
    learning = ColdStartConfig(steps=10, most_steps=14, demonstrations_per_step=2, gate=0.3)
    policy = SMALL.model_copy(update={"cold_start": learning})
    one = cold_start(policy, replace(PARTS, examinations=[easy]), 0, tmp_path)
    both = cold_start(policy, replace(PARTS, examinations=[easy, hard]), 0, tmp_path)
    assert (one.steps, one.shares_right) == (10, {"easy": 1.0})
    assert (both.steps, both.shares_right) == (14, {"easy": 1.0, "hard": 0.0})
