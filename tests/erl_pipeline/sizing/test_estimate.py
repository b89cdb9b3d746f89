from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.model_size import ModelSize
from erl_pipeline.sizing import estimate_memory, key_value_bytes, model_size, training_processes
from storage.errors import InputError
from tests.erl_pipeline.sizing.models import QWEN3_4B, SMOLLM2_135M, write


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


def test_a_reference_is_loaded_for_the_kl_term_unless_an_adapter_is_trained(tmp_path: Path) -> None:
    run = config(write(SMOLLM2_135M, tmp_path), objective={"kl_coefficient": 0.001})
    assert "reference model" in {part.name for part in estimate_memory(run, model_size(run))}
    policy = {"type": "pretrained", "model": str(tmp_path), "dtype": "bfloat16", "lora": {"rank": 8}}
    adapted = run.model_copy(update={"policy": config(str(tmp_path), policy=policy).policy})
    assert "reference model" not in {part.name for part in estimate_memory(adapted, model_size(adapted))}


def test_the_larger_of_the_two_updates_counts(tmp_path: Path) -> None:
    settings = {"update": {"microbatch_tokens": 10}, "fine_tune": {"microbatch_tokens": 100}}
    run = config(write(SMOLLM2_135M, tmp_path), **settings)
    (activations,) = [part for part in estimate_memory(run, model_size(run)) if part.name == "activations"]
    assert activations.reason.startswith("100 tokens")


def test_moments_by_use_count_for_each_update_that_the_run_makes(tmp_path: Path) -> None:
    def moments(**settings: object) -> int:
        run = config(write(SMOLLM2_135M, tmp_path), **settings)
        return next(
            part.bytes for part in estimate_memory(run, model_size(run)) if part.name == "moments of AdamW"
        )

    by_use = {"optimizer": {"moments": "by_use"}}
    assert moments() == 8 * 134_515_008
    assert moments(**by_use) == 16 * 134_515_008
    assert moments(**by_use, method={"type": "erl", "distillation": False}) == 8 * 134_515_008


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
