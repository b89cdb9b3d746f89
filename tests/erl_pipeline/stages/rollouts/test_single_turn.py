"""One answer to each of several prompts, of a policy that gives scripted answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.policies.checkpoints import WeightsSettings
from erl_pipeline.stages.rollouts import single_turn
from erl_pipeline.stages.rollouts.single_turn import SingleTurnPrompt, SingleTurnSampler
from tests.erl_pipeline.episodes.script import TOKENIZER, says

WEIGHTS = WeightsSettings(dtype="float32", lora=None, adapter_seed=None)


def prompt(name: str, words: str) -> SingleTurnPrompt:
    messages = [{"role": "user", "content": words}]
    return SingleTurnPrompt(name, messages, 7, "merge", "e", None, 2, "t", "lake", "frozen_lake", 0)  # type: ignore[arg-type]


def test_a_prompt_that_fills_the_context_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[GenerationRequest] = []

    def generate(requests: Sequence[GenerationRequest]) -> list[Generation]:
        asked.extend(requests)
        return [says("right a") for _ in requests]

    policy: Any = SimpleNamespace(
        tokenizer=TOKENIZER,
        tokenizer_digest="ours",
        end_token_ids=frozenset({TOKENIZER.eos_token_id}),
        context_length=9,
        model=SimpleNamespace(checkpoint_id="policy-1"),
    )
    engine = SimpleNamespace(batches=SimpleNamespace(generate=generate))
    monkeypatch.setattr(single_turn, "sampled_checkpoint", lambda *_: policy)
    monkeypatch.setattr(single_turn, "opened_engine", lambda *_: engine)
    monkeypatch.setattr(single_turn, "sampling_determinism", lambda *_: "bytes")
    sampler = SingleTurnSampler(None, "extractor", WEIGHTS, PluginSettings(type="any"), 8, 0.5)  # type: ignore[arg-type]

    full, answered = sampler.ask([prompt("long", "a b c d a b c d"), prompt("short", "a b")])

    # <bos> <user> a b <assistant> leaves four of nine tokens.
    [request] = asked
    assert (request.conversation, request.model, request.max_new_tokens) == ("short", "extractor", 4)
    assert full is None
    assert answered is not None
    row = sampler.trajectory(prompt("short", "a b"), answered, "a note")
    assert (row.trajectory_id, row.group_id, row.text) == ("short", "2/t/merge/0", "a note")
    assert (row.response_mask, row.temperature, row.finish_reason) == ((1, 1, 1), 0.5, "stop")
    assert sampler.trajectory(prompt("short", "a b"), answered, None).finish_reason == "ill_formed"
