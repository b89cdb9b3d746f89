from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.policies.model_size import read_model_size
from storage.errors import InputError
from tests.erl_pipeline.sizing.test_formulas import GPT2, QWEN3_4B, SMOLLM2_135M, write


def test_parameters_of_qwen3_4b_by_hand(tmp_path: Path) -> None:
    size = read_model_size(write(QWEN3_4B, tmp_path))
    # Query and output 2560 x 4096, key and value 2560 x 1024, three matrices of the feed-forward network, two
    # norms of the hidden state and two of a head; the output head is the embedding's.
    layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
    assert size.parameters == 151936 * 2560 + 36 * layer + 2560 == 4_022_468_096
    assert size.normalizes_heads
    assert (size.layers, size.key_value_heads, size.head_width) == (36, 8, 128)


def test_parameters_of_other_families(tmp_path: Path) -> None:
    smollm2 = read_model_size(write(SMOLLM2_135M, tmp_path / "smollm2"))
    assert (smollm2.parameters, smollm2.head_width) == (134_515_008, 64)
    assert not smollm2.normalizes_heads
    gpt2 = read_model_size(write(GPT2, tmp_path / "gpt2"))
    assert (gpt2.parameters, gpt2.intermediate, gpt2.key_value_heads) == (124_439_808, 3072, 12)


def test_parameters_of_an_adapter_by_hand(tmp_path: Path) -> None:
    folder = write(SMOLLM2_135M, tmp_path)
    named = read_model_size(folder, lora_rank=8, lora_modules=["q_proj", "v_proj"])
    assert named.adapter_parameters == 30 * 8 * ((576 + 576) + (576 + 192))
    everything = read_model_size(folder, lora_rank=8)
    # Query and output, key and value, gate and up and down.
    assert everything.adapter_parameters == 30 * 8 * (2 * 1152 + 2 * 768 + 3 * 2112)
    assert everything.parameters == 134_515_008


def test_a_model_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hf download no-such/model config\.json"):
        read_model_size("no-such/model")
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(InputError, match="not that of a causal language model"):
        read_model_size(str(tmp_path))
