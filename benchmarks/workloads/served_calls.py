"""A call of a served policy as its server logs it, made up without a model."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from storage.serving.traffic import ServedTurn

_VOCABULARY = range(50_000)


def served_turn(
    number: int, draw: random.Random, context_tokens: int, sampled_tokens: int, **changes: Any
) -> ServedTurn:
    """The turn of call `number`: an episode of its own, four letters for each token, but for `changes`."""
    given = {
        "turn_id": f"turn-{number}",
        "call_id": f"call-{number}",
        "episode_id": f"episode-{number}",
        "tenant": "local",
        "user": "",
        "task_type": "",
        "alias": "production",
        "policy_version": "0" * 32,
        "tokenizer_digest": "0" * 32,
        "temperature": 1.0,
        "after": None,
        "context_token_ids": tuple(draw.choices(_VOCABULARY, k=context_tokens)),
        "sampled_token_ids": tuple(draw.choices(_VOCABULARY, k=sampled_tokens)),
        "logprobs": tuple(-draw.random() for _ in range(sampled_tokens)),
        "seed": number,
        "finish_reason": "stop",
        "not_trainable": "",
        "messages": ({"role": "user", "content": "x" * 4 * context_tokens},),
        "answer": {"role": "assistant", "content": "x" * 4 * sampled_tokens},
        "notes": "",
        "memory_version": "",
        "memory_entry_ids": (),
        "arrived": datetime.now(UTC),
        "seconds": 1.0,
    }
    return ServedTurn(**{**given, **changes})
