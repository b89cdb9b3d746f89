from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen3Config

from erl_pipeline.config.optimizer import OptimizerConfig, UpdateConfig
from erl_pipeline.policies.model_size import ModelSize, read_model_size
from erl_pipeline.sizing import Precision, layer_activation_bytes, training_memory
from tests.erl_pipeline.sizing.models import QWEN3_4B, write

ROUND = ModelSize(
    parameters=1_000_000,
    layers=10,
    hidden=100,
    intermediate=400,
    heads=4,
    key_value_heads=2,
    head_width=25,
    vocabulary=1000,
    block_parameters=90_000,
    normalizes_heads=False,
)


def by_name(
    size: ModelSize,
    dtype: Precision,
    reference: bool = False,
    processes: int | None = None,
    **settings: object,
) -> dict[str, tuple[str, int]]:
    optimizer = OptimizerConfig(state_device=settings.pop("state_device", "model"))
    parts = training_memory(
        size, dtype, optimizer, UpdateConfig(**settings), reference=reference, processes=processes
    )
    assert len({part.name for part in parts}) == len(parts)
    return {part.name: (part.place, part.bytes) for part in parts}


def test_full_weights_in_bf16_need_20_bytes_a_weight_beside_activations() -> None:
    parts = by_name(ROUND, "bfloat16", microbatch_tokens=8)
    # One layer: hidden 100 x 16, intermediate 400 x 8, queries 100 x 4, keys 50 x 4.
    assert parts.pop("activations") == ("trainer", 8 * 10 * 5400)
    assert parts.pop("logits") == ("trainer", 512 * 1000 * 12)
    assert parts == {
        "weights": ("trainer", 2_000_000),
        "gradients of a pass": ("trainer", 2_000_000),
        "fp32 weights": ("trainer", 4_000_000),
        "summed gradients": ("trainer", 4_000_000),
        "moments of AdamW": ("trainer", 8_000_000),
    }


def test_fp32_weights_are_their_own_master_copy() -> None:
    parts = by_name(ROUND, "float32", reference=True)
    assert {name: number for name, (_, number) in parts.items() if name not in ("activations", "logits")} == {
        "weights": 4_000_000,
        "reference model": 4_000_000,
        "gradients of a pass": 4_000_000,
        "moments of AdamW": 8_000_000,
    }


def test_state_in_host_memory_leaves_4_bytes_a_weight_on_the_gpu() -> None:
    parts = by_name(ROUND, "bfloat16", state_device="cpu", microbatch_tokens=1)
    host = sum(number for place, number in parts.values() if place == "trainer's host")
    assert host == 16_000_000
    assert parts["weights"][1] + parts["gradients of a pass"][1] == 4_000_000


def test_processes_share_weights_and_state_and_gather_some_of_them() -> None:
    parts = by_name(ROUND, "bfloat16", processes=4)
    assert parts == {
        "weights": ("trainer", 500_000),
        "gradients of a pass": ("trainer", 500_000),
        "fp32 weights": ("trainer", 1_000_000),
        "summed gradients": ("trainer", 1_000_000),
        "moments of AdamW": ("trainer", 2_000_000),
        # 100,000 weights outside the ten blocks, and two blocks of 90,000; gradients exist for one of these
        # blocks.
        "gathered weights": ("trainer", 280_000 * 2),
        "gradients before they are added up": ("trainer", 190_000 * 6),
        "weights while they are loaded": ("trainer's host", 4 * 2_000_000),
        "activations": by_name(ROUND, "bfloat16")["activations"],
        "logits": by_name(ROUND, "bfloat16")["logits"],
    }


def test_a_single_process_that_shards_gathers_its_weights_too() -> None:
    parts = by_name(ROUND, "bfloat16", processes=1)
    assert parts["weights"] == ("trainer", 2_000_000)
    assert parts["gathered weights"] == ("trainer", 280_000 * 2)
    assert "gathered weights" not in by_name(ROUND, "bfloat16")


def test_processes_with_state_in_host_memory_have_all_of_it_there() -> None:
    parts = by_name(ROUND, "bfloat16", processes=4, state_device="cpu")
    assert parts["moments of AdamW"] == ("trainer's host", 8_000_000)
    assert parts["weights"] == ("trainer", 500_000)


def test_an_adapter_needs_state_for_itself_alone() -> None:
    parts = by_name(ModelSize(**{**vars(ROUND), "adapter_parameters": 10_000}), "bfloat16")
    assert parts["weights"] == ("trainer", 2_020_000)
    assert parts["moments of AdamW"] == ("trainer", 80_000)


def test_checkpointing_keeps_the_inputs_of_the_layers() -> None:
    parts = by_name(ROUND, "bfloat16", microbatch_tokens=8, gradient_checkpointing=True)
    assert parts["activations"] == ("trainer", 8 * (10 * 200 + 5400))


def test_qwen3_4b_with_state_in_host_memory_fits_a_gpu_of_80_gb_and_not_without(tmp_path: Path) -> None:
    size = read_model_size(write(QWEN3_4B, tmp_path))
    settings: dict[str, Any] = {"microbatch_tokens": 8192, "gradient_checkpointing": True, "reference": True}
    offloaded = by_name(size, "bfloat16", state_device="cpu", **settings)
    assert sum(number for place, number in offloaded.values() if place == "trainer") < 30e9
    kept = by_name(size, "bfloat16", **settings)
    assert sum(number for place, number in kept.values() if place == "trainer") > 80e9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
def test_activations_are_what_autograd_keeps(
    tmp_path: Path, config: type[LlamaConfig | Qwen3Config], dtype: Precision
) -> None:
    shared = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 160, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    kept = {}
    for layers in (1, 3):
        sizes = config(num_hidden_layers=layers, tie_word_embeddings=True, **shared, **heads)
        model = AutoModelForCausalLM.from_config(sizes, dtype=getattr(torch, dtype))
        kept[layers] = kept_bytes(model, tokens=128)
        size = read_model_size(write(sizes, tmp_path / str(layers)))
    measured = (kept[3] - kept[1]) / 2 / 128
    assert layer_activation_bytes(size, 4 if dtype == "float32" else 2) == pytest.approx(measured, rel=0.02)


def kept_bytes(model: PreTrainedModel, tokens: int) -> int:
    """Memory that autograd keeps for the backward pass of one sequence, in addition to the weights."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.base_model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(storage.nbytes() for storage in found.values())
