from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.config.policy import ColdStartConfig, TinyPolicyConfig
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import Demonstration
from erl_pipeline.policies.tiny.cold_start import cold_start, to_batch
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer
from storage.errors import ConfigError

SMALL = TinyPolicyConfig(
    hidden_size=32, heads=1, layers=1, cold_start=ColdStartConfig(steps=30, demonstrations_per_step=8)
)


def test_batches_are_padded_on_the_right() -> None:
    tokenizer = build_tokenizer(FrozenLakeConfig(), 64)
    short = Demonstration(["<bos>", "a", "<end>"], [False, True, True])
    long = Demonstration(["<bos>", "b", "c", "<end>"], [False, True, False, True])
    token_ids, trained = to_batch([short, long], tokenizer)
    assert tokenizer.convert_ids_to_tokens(token_ids[0].tolist()) == ["<bos>", "a", "<end>", "<pad>"]
    assert tokenizer.convert_ids_to_tokens(token_ids[1].tolist()) == ["<bos>", "b", "c", "<end>"]
    assert trained.tolist() == [[False, True, True, False], [False, True, False, True]]


def test_the_loss_falls_and_the_folder_is_a_plain_checkpoint(tmp_path: Path) -> None:
    losses: list[float] = []
    metrics = cold_start(
        SMALL, FrozenLakeConfig(), 0, tmp_path, on_step=lambda step, loss: losses.append(loss)
    )
    assert len(losses) == 30
    assert losses[0] == pytest.approx(3.8, abs=0.2)  # ln(44 words) at the start
    assert losses[-1] < losses[0] - 0.5
    assert metrics["loss"] == pytest.approx(sum(losses) / 30)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.config.architectures == ["GPT2LMHeadModel"]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.eos_token_id


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        torch.manual_seed(len(name))
        cold_start(SMALL, FrozenLakeConfig(), seed, tmp_path / name)
    first, again, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "again", "other")
    )
    assert first == again
    assert first != other


def test_prose_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"environment\.format: prose"):
        cold_start(SMALL, FrozenLakeConfig(format="prose"), 0, tmp_path)
