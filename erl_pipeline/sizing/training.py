"""Memory of one optimizer step: weights, gradients, optimizer state, activations and logits."""

from __future__ import annotations

from typing import Literal

from erl_pipeline.config.optimizer import MicrobatchConfig, OptimizerConfig
from erl_pipeline.policies.model_size import ModelSize
from erl_pipeline.sizing.parts import Part, Place, count
from erl_pipeline.trainers.local.token_logprobs import HEAD_CHUNK_TOKENS

Precision = Literal["float32", "bfloat16"]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def training_memory(
    size: ModelSize,
    dtype: Precision,
    optimizer: OptimizerConfig,
    microbatch: MicrobatchConfig,
    *,
    reference: bool,
    uses: int = 1,
) -> list[Part]:
    """What one optimizer step needs beside the program itself.

    Args:
        dtype: of the model's weights.
        reference: whether a second copy of the model is loaded for the KL term.
        uses: kinds of updates that the run makes; with `moments: by_use` each has moments of its own.
    """
    width = BYTES[dtype]
    trained = size.adapter_parameters or size.parameters
    frozen = size.parameters if size.adapter_parameters else 0
    held = trained + frozen
    on_host = optimizer.state_device == "cpu"
    # On the device of fp32 weights the optimizer steps on the weights themselves.
    copies = dtype != "float32" or on_host
    state: Place = "trainer's host" if on_host else "trainer"
    weights = count(trained)
    parts = [Part("trainer", "weights", held * width, f"{count(held)} x {width}")]
    if reference:
        parts.append(
            Part("trainer", "reference model", size.parameters * width, f"{count(size.parameters)} x {width}")
        )
    parts.append(Part("trainer", "gradients of a pass", trained * width, f"{weights} x {width}"))
    if copies:
        parts.append(Part(state, "fp32 weights", trained * 4, f"{weights} x 4"))
        parts.append(Part(state, "summed gradients", trained * 4, f"{weights} x 4"))
    sets = uses if optimizer.moments == "by_use" else 1
    times = f"{sets} x " if sets > 1 else ""
    parts.append(Part(state, "moments of AdamW", sets * trained * 8, f"{times}{weights} x 8"))
    parts.append(_activations(size, width, microbatch))
    parts.append(_logits(size, width))
    return parts


def layer_activation_bytes(size: ModelSize, width: int) -> int:
    """Bytes that autograd keeps of one token in one block of the Llama family, for the backward pass.

    hidden: two norms, each an fp32 input, its normalized value and the scaled result. intermediate: gate, up,
    activation and product. Queries with the attention's output, keys and values: each once; a norm of their
    own adds an fp32 input and a normalized value. Measured with saved-tensor hooks; other families differ.
    """
    queries, keys = size.heads * size.head_width, size.key_value_heads * size.head_width
    normed = 4 + width if size.normalizes_heads else 0
    return (
        size.hidden * 2 * (4 + 2 * width)
        + size.intermediate * 4 * width
        + queries * (2 * width + normed)
        + keys * (2 * width + normed)
    )


def _activations(size: ModelSize, width: int, microbatch: MicrobatchConfig) -> Part:
    tokens, layer = microbatch.microbatch_tokens, layer_activation_bytes(size, width)
    if not microbatch.gradient_checkpointing:
        return Part(
            "trainer",
            "activations",
            tokens * size.layers * layer,
            f"{tokens:,} tokens x {size.layers} layers x {layer:,}",
        )
    kept = size.hidden * width
    return Part(
        "trainer",
        "activations",
        tokens * (size.layers * kept + layer),
        f"{tokens:,} tokens x ({size.layers} layers x {kept:,} + one layer x {layer:,})",
    )


def _logits(size: ModelSize, width: int) -> Part:
    """Logits and their gradient in the weights' precision, and two fp32 copies while the softmax is taken
    (on a GPU of all rows at once; a CPU takes some rows at a time)."""
    per_logit = 2 * width + 8
    return Part(
        "trainer",
        "logits",
        HEAD_CHUNK_TOKENS * size.vocabulary * per_logit,
        f"{HEAD_CHUNK_TOKENS} tokens x {count(size.vocabulary)} x {per_logit}",
    )
