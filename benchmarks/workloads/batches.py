"""Batches for the update benchmarks: arbitrary tokens, with the lengths of recorded FrozenLake rollouts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.trainers.sequences import TrainingSequence

LENGTHS = Path(__file__).with_name("frozen_lake_lengths.json")
"""Made by `record_lengths.py`."""

SEQUENCES = 64
BATCHES = {
    "first attempts": "8 prompts with 8 first attempts each, as GRPO has them",
    "episodes": "whole episodes of ERL: first attempts, reflections and second attempts",
}


@dataclass(frozen=True)
class BatchSequence:
    """One sequence; those with equal prompts have equal `prompt_token_ids`."""

    role: str
    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]
    advantage: float


def read_batch(kind: str, vocabulary: int, count: int = SEQUENCES) -> list[BatchSequence]:
    """The first `count` recorded sequences of a kind of batch; the tokens are the same in every process."""
    rows = json.loads(LENGTHS.read_text())["trajectories"]
    if kind == "first attempts":
        rows = [row for row in rows if row[0] == "first_attempt"]
    if len(rows) < count:
        raise ValueError(f"{LENGTHS} holds {len(rows)} sequences for {kind!r}; {count} are needed")
    draw = random.Random(0)
    prompts: dict[int, tuple[int, ...]] = {}
    sequences = []
    for place, (role, prompt, prompt_tokens, response_tokens) in enumerate(rows[:count]):
        if prompt not in prompts:
            prompts[prompt] = _tokens(draw, prompt_tokens, vocabulary)
        sequences.append(
            BatchSequence(
                role=role,
                prompt_token_ids=prompts[prompt],
                response_token_ids=_tokens(draw, response_tokens, vocabulary),
                advantage=1.0 if place % 2 else -1.0,
            )
        )
    return sequences


def token_count(sequences: list[BatchSequence]) -> int:
    """Prompt and response tokens, each sequence with its own prompt."""
    return sum(len(one.prompt_token_ids) + len(one.response_token_ids) for one in sequences)


def training_sequences(sequences: Sequence[BatchSequence], supervised: bool) -> list[TrainingSequence]:
    """The same sequences in the form that our trainers take; supervised ones have no behaviour
    log-probabilities."""
    from erl_pipeline.trainers.sequences import TrainingSequence

    return [
        TrainingSequence(
            trajectory_id=str(place),
            role=one.role,
            prompt_token_ids=one.prompt_token_ids,
            response_token_ids=one.response_token_ids,
            response_mask=(1,) * len(one.response_token_ids),
            behaviour_logprobs=() if supervised else (-10.0,) * len(one.response_token_ids),
            advantage=one.advantage,
        )
        for place, one in enumerate(sequences)
    ]


def _tokens(draw: random.Random, count: int, vocabulary: int) -> tuple[int, ...]:
    # Skip the special tokens at the beginning of the vocabulary.
    return tuple(draw.randrange(100, vocabulary) for _ in range(count))
