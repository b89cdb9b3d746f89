"""Memory that a configuration needs, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel, Qwen3Config

from erl_pipeline.config.optimizer import OptimizerConfig, UpdateConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.model_size import ModelSize, read_model_size
from erl_pipeline.sizing.formulas import (
    Precision,
    estimate_memory,
    key_value_bytes,
    layer_activation_bytes,
    model_size,
    training_memory,
    training_processes,
)
from erl_pipeline.trainers.interface import GradientSums
from storage.errors import InputError

SMOLLM2_135M = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
QWEN3_4B = Qwen3Config(
    vocab_size=151936,
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=262144,
    tie_word_embeddings=True,
)
GPT2 = GPT2Config()


def write(config: LlamaConfig | Qwen3Config | GPT2Config, folder: Path) -> str:
    """The folder of a model of this configuration."""
    config.save_pretrained(folder)
    return str(folder)


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
    processes: int | None = None,
    **settings: object,
) -> dict[str, tuple[str, int]]:
    optimizer = OptimizerConfig(state_device=settings.pop("state_device", "model"))
    parts = training_memory(size, dtype, optimizer, UpdateConfig(**settings), processes=processes)
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


def test_gradients_that_are_added_up_once_in_a_step_are_held_whole() -> None:
    """Ten blocks of 90,000 weights, 4 bytes each, in each process."""

    def needed(sums: GradientSums) -> int:
        given = OptimizerConfig(), UpdateConfig()
        parts = training_memory(ROUND, "bfloat16", *given, processes=4, gradient_sums=sums)
        return sum(part.bytes for part in parts)

    assert needed("step") - needed("microbatch") == 3_600_000


def test_fp32_weights_are_their_own_master_copy() -> None:
    parts = by_name(ROUND, "float32")
    assert {name: number for name, (_, number) in parts.items() if name not in ("activations", "logits")} == {
        "weights": 4_000_000,
        "gradients of a pass": 4_000_000,
        "moments of AdamW": 8_000_000,
    }


@pytest.mark.parametrize(("dtype", "on_gpu"), [("bfloat16", 2 + 2 + 4), ("float32", 4 + 4)])
def test_state_in_host_memory_leaves_8_bytes_a_weight_on_the_gpu(dtype: Precision, on_gpu: int) -> None:
    """The weights, the gradients of a pass and, for bf16, their sums in fp32."""
    parts = by_name(ROUND, dtype, state_device="cpu", microbatch_tokens=1)
    del parts["activations"], parts["logits"]
    assert sum(number for place, number in parts.values() if place == "trainer's host") == 16_000_000
    assert sum(number for place, number in parts.values() if place == "trainer") == on_gpu * 1_000_000


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
    settings: dict[str, Any] = {"microbatch_tokens": 8192, "gradient_checkpointing": True}
    offloaded = by_name(size, "bfloat16", state_device="cpu", **settings)
    assert sum(number for place, number in offloaded.values() if place == "trainer") < 37e9
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


def config(model: str, **settings: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "sizes",
            "iterations": 1,
            "environment": {"type": "frozen_lake", "format": "prose", "actions": "named"},
            "policy": {"type": "pretrained", "model": model, "dtype": "bfloat16"},
            **settings,
        }
    )


def test_what_is_written_late_and_what_sleeps_is_copied_to_host_memory() -> None:
    """bf16 weights have fp32 copies and two moments: 12 bytes each."""

    def copies(**settings: object) -> dict[str, int]:
        parts = estimate_memory(config("none", **settings), ROUND)
        return {
            part.name: part.bytes for part in parts if part.name.startswith(("the state", "weights while it"))
        }

    sharded: dict[str, Any] = {"type": "fsdp2", "processes": 2}
    assert copies() == {}
    assert copies(trainer=sharded) == {"the state until it is written": 12_000_000}
    assert copies(trainer=sharded, store={"background_commit_mb": None}) == {}
    asleep = {"the state until it is written": 12_000_000, "weights while it sleeps": 2_000_000}
    sharded["sleep"] = True
    assert copies(trainer=sharded) == {**asleep, "the state while it sleeps": 12_000_000}
    assert copies(trainer=sharded, optimizer={"state_device": "cpu"}) == asleep


def sampler(run: RunConfig, size: ModelSize, tokens: int | None = None) -> dict[str, int]:
    return {part.name: part.bytes for part in estimate_memory(run, size, tokens) if part.place == "sampler"}


def test_the_key_value_cache_of_known_models(tmp_path: Path) -> None:
    qwen = model_size(config(write(QWEN3_4B, tmp_path / "qwen")))
    smollm2 = model_size(config(write(SMOLLM2_135M, tmp_path / "smollm2")))
    assert key_value_bytes(qwen, 2) == 2 * 36 * 8 * 128 * 2 == 147_456
    assert key_value_bytes(smollm2, 2) == 2 * 30 * 3 * 64 * 2 == 23_040


def test_replicas_and_sequences_in_flight(tmp_path: Path) -> None:
    engine = {"type": "vllm", "max_in_flight": 100, "max_context": 2000}
    run = config(write(SMOLLM2_135M, tmp_path), engine=engine)
    size = model_size(run)
    assert sampler(run, size) == {"weights": 134_515_008 * 2, "key-value cache": 100 * 2000 * 23_040}
    eight = config(str(tmp_path), engine={**engine, "arguments": ["--data-parallel-size=7"]})
    assert sampler(eight, size, 500) == {
        "weights": 7 * 134_515_008 * 2,
        "key-value cache": 100 * 500 * 23_040,
    }
    pairs = {**engine, "replicas": 2, "arguments": ["--data-parallel-size", "3"]}
    assert sampler(config(str(tmp_path), engine=pairs), size)["weights"] == 2 * 3 * 134_515_008 * 2
    servers = [{"url": "http://a:1"}, {"url": "http://b:1"}]
    assert sampler(config(str(tmp_path), engine={**engine, "servers": servers}), size)["weights"] == (
        2 * 134_515_008 * 2
    )


def test_the_embedded_engine_samples_from_the_weights_that_are_trained(tmp_path: Path) -> None:
    run = config(write(SMOLLM2_135M, tmp_path), rollouts={"tasks_per_shard": 4, "group_size": 8})
    assert sampler(run, model_size(run)) == {"key-value cache": 32 * 1024 * 23_040}


def test_a_warm_start_trains_all_weights_also_below_an_adapter(tmp_path: Path) -> None:
    """In bf16 it takes 2 bytes per weight, 2 for gradients, and 16 for fp32 copy, summed gradients and
    moments."""
    policy = {"type": "pretrained", "model": write(SMOLLM2_135M, tmp_path), "dtype": "bfloat16"}
    lora: dict[str, object] = {**policy, "lora": {"rank": 8}}

    def of_training(policy: dict[str, object]) -> int:
        run = config(str(tmp_path), policy=policy)
        names = {"weights", "gradients of a pass", "fp32 weights", "summed gradients", "moments of AdamW"}
        parts = estimate_memory(run, model_size(run))
        return sum(part.bytes for part in parts if part.name in names and part.place != "sampler")

    assert of_training(lora) < 134_515_008 * 3
    assert of_training({**lora, "warm_start": {"type": "messages", "file": "f"}}) == 134_515_008 * 20


def test_the_larger_of_the_two_updates_counts(tmp_path: Path) -> None:
    settings = {"update": {"microbatch_tokens": 10}, "fine_tune": {"microbatch_tokens": 100}}
    run = config(write(SMOLLM2_135M, tmp_path), **settings)
    (activations,) = [part for part in estimate_memory(run, model_size(run)) if part.name == "activations"]
    assert activations.reason.startswith("100 tokens")


def test_a_head_that_computes_in_fp32_needs_a_copy_its_gradient_and_wider_logits(tmp_path: Path) -> None:
    """49,152 words of 576 numbers, of 4 bytes each, and as much for the gradient, which a frozen head has
    not; a logit takes 16 bytes in place of 12."""
    model = write(SMOLLM2_135M, tmp_path)

    def parts(**policy: object) -> dict[str, int]:
        given = {"type": "pretrained", "model": model, "dtype": "bfloat16", **policy}
        run = config(model, policy=given)
        return {part.name: part.bytes for part in estimate_memory(run, model_size(run))}

    plain, wide = parts(), parts(head_dtype="float32")
    assert wide.pop("copy of the head") == 49_152 * 576 * 8
    assert wide.pop("logits") == 512 * 49_152 * 16
    assert plain.pop("logits") == 512 * 49_152 * 12
    assert wide == plain
    assert parts(head_dtype="float32", lora={"rank": 8})["copy of the head"] == 49_152 * 576 * 4


def test_moments_by_use_count_for_each_update_that_the_run_makes(tmp_path: Path) -> None:
    def moments(**settings: object) -> int:
        run = config(write(SMOLLM2_135M, tmp_path), **settings)
        return next(
            part.bytes for part in estimate_memory(run, model_size(run)) if part.name == "moments of AdamW"
        )

    by_use = {"optimizer": {"moments": "by_use"}}
    assert moments() == 8 * 134_515_008
    assert moments(**by_use) == 16 * 134_515_008
    assert moments(**by_use, distillation=False) == 8 * 134_515_008


def test_the_tiny_policy_has_nothing_to_estimate() -> None:
    run = RunConfig.model_validate(
        {"name": "x", "iterations": 1, "environment": {"type": "frozen_lake"}, "policy": {"type": "tiny"}}
    )
    with pytest.raises(InputError, match=r"policy\.type: tiny has no config\.json"):
        model_size(run)


def test_a_trainer_of_two_processes_has_half_of_the_state_in_each(tmp_path: Path) -> None:
    two = config(write(SMOLLM2_135M, tmp_path), trainer={"type": "fsdp2", "processes": 2})
    one = config(str(tmp_path))
    assert (training_processes(one), training_processes(two)) == (None, 2)
    size = model_size(two)
    # Embeddings of 49,152 x 576, the last norm, and 30 blocks.
    assert size.parameters - 30 * size.block_parameters == 49_152 * 576 + 576
    moments = {
        run.trainer.type: part.bytes
        for run in (one, two)
        for part in estimate_memory(run, size)
        if part.name == "moments of AdamW"
    }
    assert moments == {"local": 134_515_008 * 8, "fsdp2": 134_515_008 * 4}
