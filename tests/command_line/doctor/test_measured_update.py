from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from transformers import LlamaConfig

from command_line.doctor.measured_update import CARDS, card_named
from erl_pipeline.sizing.simulated_work import GPU
from storage.errors import InputError
from tests import forked
from tests.command_line.invoke import invoke

CONFIG = """\
name: sizes
iterations: 1
method: {type: rlvr}
environment: {type: frozen_lake, format: prose, actions: named}
policy: {type: pretrained, model: %s, dtype: bfloat16}
rollouts: {tasks_per_iteration: 2, group_size: 2}
"""
MODEL = LlamaConfig(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4
)
PARAMETERS = 2 * 512 * 64 + 64 + 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64


@pytest.fixture
def words(tmp_path: Path) -> list[str | Path]:
    MODEL.save_pretrained(tmp_path / "model")
    (tmp_path / "config.yaml").write_text(CONFIG % (tmp_path / "model"))
    lengths = ["--sequence-tokens", "32", "--card", "0.001"]
    return ["doctor", "--config", tmp_path / "config.yaml", "--store", tmp_path, *lengths]


def test_the_update_is_shown_part_by_part_and_does_not_fit_on_a_megabyte(
    words: list[str | Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next test starts a new Python for it, as users do, which takes seconds.
    simulated = partial(forked.call, "erl_pipeline.sizing.simulated_update:simulate_here")
    monkeypatch.setattr("command_line.doctor.measured_update.simulate", simulated)
    result = invoke(*words, "--set", "replay=on", "--set", "self_distillation.hindsight=sibling")
    assert result.status == 0, result.errors
    assert "Not measured, but in the updates of this run: the rows of replay (" in result.output
    assert "; self-distillation (its teacher's pass" in result.output
    assert "4 sequences of 32 tokens, of which 8 are a prompt that 2 share" in result.output
    assert "DOES NOT FIT on a card of 0.001 GB" in result.output
    (moments,) = [line for line in result.output.splitlines() if line.startswith(" moments")]
    assert moments.split() == ["moments", "of", "AdamW", "0.00", "0.00"]


def test_the_update_as_json_has_bytes_and_counts(words: list[str | Path]) -> None:
    shown = invoke(*words, "--json").json["update"]
    assert (shown["sequences"], shown["prompt_tokens"], shown["response_tokens"]) == (4, 8, 24)
    assert shown["left_out"] == []
    (rank,) = shown["ranks"]
    assert (rank["rank"], rank["fits"]) == (0, False)
    assert rank["peaks"][GPU]["parts"]["weights"] == PARAMETERS * 2
    assert rank["updates"]["update"]["costs"]["flops"] > 0


def test_a_rank_that_the_trainer_does_not_have_is_a_message(words: list[str | Path]) -> None:
    result = invoke(*words, "--rank", "1")
    assert (result.status, "--rank 1: the trainer has 1 process, from 0" in result.errors) == (2, True)


def test_cards_have_names_or_a_number_of_gigabytes() -> None:
    assert card_named("h100", 0).memory == CARDS["h100"] == 80e9
    assert (card_named("12", 0).memory, card_named("12", 0).device) == (12e9, GPU)
    assert card_named("cpu", int(1e10)).device == "cpu"
    with pytest.raises(InputError, match="--card nonsense: known are cpu, rtx4090"):
        card_named("nonsense", 0)
