from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from erl_pipeline.config.policy import ColdStartConfig, TinyPolicyConfig
from erl_pipeline.environments.demonstrations import Examination, ExamQuestion
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.policies.tiny.cold_start import Schedule, cold_start, examiner
from erl_pipeline.policies.tiny.model import build_model, build_tokenizer

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


TOKENIZER = build_tokenizer(["x", "y", "?"], 16)


def reflection(answer: str) -> list[Message]:
    return [{"role": "user", "content": "x x"}, {"role": "assistant", "content": answer}]


def test_only_the_asked_words_are_looked_at() -> None:
    """A policy whose most probable word is always `x`."""
    model = build_model(TinyPolicyConfig(hidden_size=32, heads=1, layers=1), TOKENIZER, 16, seed=0)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[TOKENIZER.get_vocab()["x"]] = 1.0
    questions = [
        ExamQuestion(reflection("x y x y"), (0, 1)),  # one of two
        ExamQuestion(reflection("y x"), (1,)),  # one of one
        ExamQuestion(reflection("? y"), (0, 1)),  # none of two
    ]
    assert examiner(questions, TOKENIZER).share_right(model) == pytest.approx(2 / 5)


def test_questions_without_an_asked_word_are_refused() -> None:
    with pytest.raises(ValueError, match="a word that is asked for"):
        examiner([ExamQuestion(reflection("x"), ())], TOKENIZER)


SETTINGS = ColdStartConfig(steps=100, most_steps=200, gate=0.9)


def examine(schedule: Schedule, shares: dict[int, float]) -> list[int]:
    """Go through all steps; returns the numbers of steps after which an examination was due."""
    due, done = [], 0
    while done < schedule.steps:
        if schedule.examination_due(done):
            due.append(done)
            schedule.examined(done, shares[done])
        done += 1
    return due


def test_learning_rates_fall_after_sixty_percent_of_the_steps() -> None:
    schedule = Schedule(SETTINGS, gated=False)
    assert examine(schedule, {}) == []
    assert schedule.steps == 100
    assert [schedule.rate(done) for done in (0, 59, 60)] == [1.0, 1.0, 1.0]
    # Half of the 40 falling steps: 1 - 0.95 / 2.
    assert schedule.rate(80) == pytest.approx(0.525)
    assert schedule.rate(100) == pytest.approx(0.05)


def test_a_policy_that_passes_at_once_takes_its_steps() -> None:
    schedule = Schedule(SETTINGS, gated=True)
    assert examine(schedule, {60: 0.9}) == [60]
    assert schedule.steps == 100


def test_learning_rates_stay_high_until_the_gate_is_passed() -> None:
    schedule = Schedule(SETTINGS, gated=True)
    assert examine(schedule, {60: 0.5, 110: 0.95}) == [60, 110]
    assert schedule.steps == 150
    assert schedule.rate(110) == 1.0
    assert schedule.rate(130) == pytest.approx(0.525)


def test_a_policy_that_never_passes_ends_with_the_most_steps() -> None:
    schedule = Schedule(SETTINGS, gated=True)
    assert examine(schedule, {60: 0.5, 110: 0.5, 160: 0.5}) == [60, 110, 160]
    assert schedule.steps == 200
