"""Examining the tiny policy on questions that its cold start does not train."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from erl_pipeline.environments.tiny_parts import Question
from erl_pipeline.policies.tiny.conversations import to_batch, to_words

_BATCH = 128


@dataclass(frozen=True)
class Examiner:
    """Questions as tokens.

    `token_ids` is `[questions, time]`, `asked` the mask of the tokens that must be right.
    """

    token_ids: torch.Tensor
    asked: torch.Tensor

    @torch.inference_mode()
    def share_right(self, model: GPT2LMHeadModel) -> float:
        """The share of asked tokens that are the most probable after the tokens before them."""
        right = 0
        for token_ids, asked in zip(
            self.token_ids.split(_BATCH), self.asked[:, 1:].split(_BATCH), strict=True
        ):
            hidden = model.transformer(input_ids=token_ids[:, :-1]).last_hidden_state
            said = model.lm_head(hidden[asked]).argmax(-1)
            right += int((said == token_ids[:, 1:][asked]).sum())
        return right / int(self.asked.sum())


def examiner(questions: Sequence[Question], tokenizer: PreTrainedTokenizerFast) -> Examiner:
    """The questions, ready to be asked often. Raises `ValueError` where they ask for no word."""
    token_ids = to_batch([question.demonstration for question in questions], tokenizer).token_ids
    asked = torch.zeros_like(token_ids, dtype=torch.bool)
    for row, question in enumerate(questions):
        words, _ = to_words(question.demonstration)
        answer = len(words) - len(question.demonstration[-1]["content"].split()) - 1  # before <end>
        asked[row, [answer + place for place in question.places]] = True
    if not asked.any():
        raise ValueError("an examination needs a word that is asked for")
    return Examiner(token_ids, asked)
