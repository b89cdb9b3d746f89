"""Demonstrated conversations as tokens of the tiny policy."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerFast

from erl_pipeline.environments.tiny_parts import Demonstration
from erl_pipeline.policies.tiny.tokenizer import ASSISTANT, BOS, END, USER


def to_words(demonstration: Demonstration) -> tuple[list[str], list[bool]]:
    """A conversation as the tokenizer's words, and which of them are trained: what the assistant says."""
    words, trained = [BOS], [False]
    for message in demonstration:
        said = message["content"].split()
        if message["role"] == "assistant":
            words += [ASSISTANT, *said, END]
            trained += [False, *[True] * (len(said) + 1)]
        else:
            words += [USER, *said]
            trained += [False] * (len(said) + 1)
    return words, trained


def to_batch(
    demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and trained mask, `[batch, time]`; padded on the right, which causal attention never sees."""
    ids = tokenizer.get_vocab()
    shown = [to_words(demonstration) for demonstration in demonstrations]
    width = max(len(words) for words, _ in shown)
    token_ids = torch.full((len(shown), width), tokenizer.pad_token_id, dtype=torch.long)
    mask = torch.zeros(len(shown), width, dtype=torch.bool)
    for row, (words, trained) in enumerate(shown):
        token_ids[row, : len(words)] = torch.tensor([ids[word] for word in words])
        mask[row, : len(words)] = torch.tensor(trained)
    return token_ids, mask
