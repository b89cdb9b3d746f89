"""Memory of the engine that samples: weights and key-value cache."""

from __future__ import annotations

from erl_pipeline.policies.model_size import ModelSize
from erl_pipeline.sizing.parts import Part, count


def key_value_bytes(size: ModelSize, width: int) -> int:
    """Key-value cache of one token: a key and a value of every key-value head in every layer."""
    return 2 * size.layers * size.key_value_heads * size.head_width * width


def sampling_memory(size: ModelSize, width: int, sequences: int, tokens: int, replicas: int) -> list[Part]:
    """What sampling needs, over all replicas.

    Args:
        width: bytes of a weight and of a cached number.
        sequences: how many are in flight at the same time.
        tokens: tokens of one sequence, prompt and answer together.
        replicas: copies of the weights; 0 where sampling uses the trainer's own.
    """
    parts = []
    weights = size.parameters + size.adapter_parameters
    if replicas:
        copies = f"{replicas} x " if replicas > 1 else ""
        parts.append(
            Part("sampler", "weights", replicas * weights * width, f"{copies}{count(weights)} x {width}")
        )
    cached = key_value_bytes(size, width)
    parts.append(
        Part(
            "sampler",
            "key-value cache",
            sequences * tokens * cached,
            f"{sequences:,} sequences x {tokens:,} tokens x {cached:,}",
        )
    )
    return parts
