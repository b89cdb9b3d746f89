"""Demonstrated conversations as tokens of the tiny policy."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from transformers import PreTrainedTokenizerFast

from erl_pipeline.environments.demonstrations import Demonstration
from erl_pipeline.policies.tiny.tokenizer import ASSISTANT, BOS, END, USER

_WORTH_SHARING = 0.5  # share of a conversation that the next one must begin with as well


@dataclass(frozen=True)
class Batch:
    """Conversations as tokens; each row holds one, or several that begin alike.

    `token_ids`, `trained` and `positions` are `[rows, time]`, padded on the right. `attention` is
    `[rows, 1, time, time]` and true where a token (third dimension) sees another (fourth): the common
    beginning, and what came before in its own conversation. None: each row is one conversation, in which a
    token sees all before it.
    """

    token_ids: torch.Tensor
    trained: torch.Tensor
    positions: torch.Tensor
    attention: torch.Tensor | None


_Conversation = tuple[list[str], list[bool]]
"""Words, and which of them are trained."""


@dataclass(frozen=True)
class _Row:
    """One row of words. `branch` is 0 for the common beginning, then the number of the conversation, from
    1."""

    words: list[str]
    trained: list[bool]
    positions: list[int]
    branch: list[int]


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


def to_batch(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast) -> Batch:
    """Conversations as one batch, each in a row of its own."""
    return _stacked([_alone(to_words(each)) for each in demonstrations], tokenizer, shared=False)


def to_batches(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast) -> list[Batch]:
    """The same conversations at less cost: the single ones, and those that share a row.

    Neighbours that begin alike, such as reflections on the same attempt with different memories, share a row,
    so that their beginning is computed once. What is learned is the same.
    """
    groups = _alike([to_words(each) for each in demonstrations])
    single = [_alone(group[0]) for group in groups if len(group) == 1]
    together = [_together(group) for group in groups if len(group) > 1]
    batches = [_stacked(single, tokenizer, shared=False)] if single else []
    return [*batches, _stacked(together, tokenizer, shared=True)] if together else batches


def _stacked(rows: Sequence[_Row], tokenizer: PreTrainedTokenizerFast, *, shared: bool) -> Batch:
    ids = tokenizer.get_vocab()
    shape = len(rows), max(len(row.words) for row in rows)
    token_ids = torch.full(shape, tokenizer.pad_token_id, dtype=torch.long)
    trained = torch.zeros(shape, dtype=torch.bool)
    positions = torch.zeros(shape, dtype=torch.long)
    branch = torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        length = len(row.words)
        token_ids[number, :length] = torch.tensor([ids[word] for word in row.words])
        trained[number, :length] = torch.tensor(row.trained)
        positions[number, :length] = torch.tensor(row.positions)
        branch[number, :length] = torch.tensor(row.branch)
    if not shared:
        return Batch(token_ids, trained, positions, None)
    causal = torch.ones(shape[1], shape[1], dtype=torch.bool).tril()
    seen = (branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])
    return Batch(token_ids, trained, positions, (causal & seen)[:, None])


def _alike(conversations: Sequence[_Conversation]) -> list[list[_Conversation]]:
    """Groups of neighbours, each of which shares enough with the one before it."""
    groups: list[list[_Conversation]] = []
    for words, trained in conversations:
        shared = _common([groups[-1][-1][0], words]) if groups else 0
        if shared > _WORTH_SHARING * len(words):
            groups[-1].append((words, trained))
        else:
            groups.append([(words, trained)])
    return groups


def _common(texts: Sequence[Sequence[str]]) -> int:
    """How many words all of them begin with."""
    return len(list(takewhile(lambda words: len(set(words)) == 1, zip(*texts, strict=False))))


def _alone(conversation: _Conversation) -> _Row:
    words, trained = conversation
    return _Row(words, trained, list(range(len(words))), [0] * len(words))


def _together(conversations: Sequence[_Conversation]) -> _Row:
    """The common beginning once, then the rest of each conversation.

    The rest begins with a word that is not trained: the word before it in the row may belong to another
    conversation, which cannot predict it.
    """
    whole = [words for words, _ in conversations]
    common = min(_common(whole), *(trained.index(True) - 1 for _, trained in conversations))
    row = _Row(whole[0][:common], [False] * common, list(range(common)), [0] * common)
    for number, (words, trained) in enumerate(conversations, start=1):
        row.words.extend(words[common:])
        row.trained.extend(trained[common:])
        row.positions.extend(range(common, len(words)))
        row.branch.extend([number] * (len(words) - common))
    return row
