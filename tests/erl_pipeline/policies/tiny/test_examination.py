from __future__ import annotations

import pytest
import torch

from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.environments.demonstrations import ExamQuestion
from erl_pipeline.environments.messages import Message
from erl_pipeline.policies.tiny.architecture import build_model
from erl_pipeline.policies.tiny.cold_start import examiner
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer

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
