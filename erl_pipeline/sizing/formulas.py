"""The memory that a configuration needs: of the engine that samples, and of one optimizer step."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from erl_pipeline.config.optimizer import MicrobatchConfig, OptimizerConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import SamplingCapacity
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.policies.model_size import ModelSize, read_model_size
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.training.distillation import FineTuneSettings
from erl_pipeline.trainers.interface import GradientSums, PassSettings, TrainerPlugin
from erl_pipeline.trainers.local.tokens import HEAD_CHUNK_TOKENS
from storage.errors import InputError

Place = Literal["trainer", "trainer's host", "sampler"]
"""`trainer`: the device that trains. `trainer's host`: host memory beside a GPU. `sampler`: where the engine
computes, which may be the trainer's device too."""


@dataclass(frozen=True)
class MemoryPart:
    """Memory for one thing; `reason` is the product that gives `bytes`, with its numbers."""

    place: Place
    name: str
    bytes: int
    reason: str


def count(number: float) -> str:
    """A number of weights or tokens, in short form."""
    for scale, letter in ((1e9, "G"), (1e6, "M")):
        if number >= scale:
            return f"{number / scale:.4g} {letter}"
    return f"{number:,.0f}"


def key_value_bytes(size: ModelSize, width: int) -> int:
    """Key-value cache of one token: a key and a value of every key-value head in every layer."""
    return 2 * size.layers * size.key_value_heads * size.head_width * width


def sampling_memory(
    size: ModelSize, width: int, sequences: int, tokens: int, replicas: int
) -> list[MemoryPart]:
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
            MemoryPart(
                "sampler", "weights", replicas * weights * width, f"{copies}{count(weights)} x {width}"
            )
        )
    cached = key_value_bytes(size, width)
    parts.append(
        MemoryPart(
            "sampler",
            "key-value cache",
            sequences * tokens * cached,
            f"{sequences:,} sequences x {tokens:,} tokens x {cached:,}",
        )
    )
    return parts


Precision = Literal["float32", "bfloat16"]

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def training_memory(
    size: ModelSize,
    dtype: Precision,
    optimizer: OptimizerConfig,
    microbatch: MicrobatchConfig,
    *,
    uses: int = 1,
    processes: int | None = None,
    head_dtype: Precision | None = None,
    gradient_sums: GradientSums = "microbatch",
) -> list[MemoryPart]:
    """What one optimizer step needs besides the program itself. The reference model of the KL term is freed
    before the first step, whose gradients take at least as much.

    Args:
        dtype: number type of the model's weights.
        uses: kinds of updates that the run makes; with `moments: by_use` each has moments of its own.
        processes: over how many weights, gradients and state are sharded; None: they are not. Parts in
            `trainer` are then those of one process, parts in its host those of all. Also a single process
            that shards gathers its weights.
        head_dtype: that in which the output head computes; None: that of the weights.
        gradient_sums: when the processes add up the gradients of the blocks.
    """
    width = BYTES[dtype]
    trained = size.adapter_parameters or size.parameters
    frozen = size.parameters if size.adapter_parameters else 0
    held = trained + frozen
    on_host = optimizer.state_device == "cpu"
    copies, sets = _copies_weights(dtype, optimizer), _moment_sets(optimizer, uses)
    state: Place = "trainer's host" if on_host else "trainer"

    def spread(place: Place, name: str, numbers: int, bytes_each: int, sets: int = 1) -> MemoryPart:
        shares = 1 if place == "trainer's host" else processes or 1
        times, over = f"{sets} x " if sets > 1 else "", f" / {shares}" if shares > 1 else ""
        reason = f"{times}{count(numbers)} x {bytes_each}{over}"
        return MemoryPart(place, name, -(-sets * numbers * bytes_each // shares), reason)

    parts = [spread("trainer", "weights", held, width)]
    parts.append(spread("trainer", "gradients of a pass", trained, width))
    if copies:
        parts.append(spread(state, "fp32 weights", trained, 4))
        if dtype != "float32":  # gradients of fp32 weights are summed where they arise
            parts.append(spread("trainer", "summed gradients", trained, 4))
    if on_host:
        parts.append(spread(state, "gradients of a step", trained, 4))
    parts.append(spread(state, "moments of AdamW", trained, 8, sets))
    if processes is not None:
        parts += _gathered(size, width, trained)
        if gradient_sums == "step":
            whole = size.adapter_parameters or size.layers * size.block_parameters
            parts.append(
                MemoryPart("trainer", "whole gradients of the blocks", 4 * whole, f"{count(whole)} x 4")
            )
    parts.append(_activations(size, width, microbatch))
    if head_dtype is None:
        parts.append(_logits(size, width))
    else:
        parts += [_copied_head(size, BYTES[head_dtype]), _logits(size, BYTES[head_dtype])]
    return parts


def _copies_weights(dtype: Precision, optimizer: OptimizerConfig) -> bool:
    """Whether the optimizer has fp32 copies; it updates fp32 weights on its own device themselves."""
    return dtype != "float32" or optimizer.state_device == "cpu"


def _moment_sets(optimizer: OptimizerConfig, uses: int) -> int:
    return uses if optimizer.moments == "by_use" else 1


def _gathered(size: ModelSize, width: int, trained: int) -> list[MemoryPart]:
    """What a process holds unsharded for a while (`erl_pipeline.trainers.fsdp2.sharding.shard`).

    Throughout a pass these are the weights outside the blocks, those of the block at work and those of the
    next block. The block at work and the weights outside the blocks also have whole gradients, and fp32
    copies of them, which are summed over the processes. Loading needs no memory of its own: files in the type
    of the weights are mapped, and each process copies its part.
    """
    outside = size.parameters - size.layers * size.block_parameters
    weights = outside + 2 * size.block_parameters
    parts = [MemoryPart("trainer", "gathered weights", weights * width, f"{count(weights)} x {width}")]
    if trained == size.parameters:
        gradients = outside + size.block_parameters
        parts.append(
            MemoryPart(
                "trainer",
                "gradients before they are added up",
                gradients * (width + 4),
                f"{count(gradients)} x {width + 4}",
            )
        )
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


def _activations(size: ModelSize, width: int, microbatch: MicrobatchConfig) -> MemoryPart:
    tokens, layer = microbatch.microbatch_tokens, layer_activation_bytes(size, width)
    if not microbatch.gradient_checkpointing:
        return MemoryPart(
            "trainer",
            "activations",
            tokens * size.layers * layer,
            f"{tokens:,} tokens x {size.layers} layers x {layer:,}",
        )
    kept = size.hidden * width
    return MemoryPart(
        "trainer",
        "activations",
        tokens * (size.layers * kept + layer),
        f"{tokens:,} tokens x ({size.layers} layers x {kept:,} + one layer x {layer:,})",
    )


def _copied_head(size: ModelSize, width: int) -> MemoryPart:
    """The weights of a head that computes in another precision, and their gradient where they are trained."""
    weights, each = size.vocabulary * size.hidden, width if size.adapter_parameters else 2 * width
    return MemoryPart("trainer", "copy of the head", weights * each, f"{count(weights)} x {each}")


def _logits(size: ModelSize, width: int) -> MemoryPart:
    """Logits and their gradient in the head's precision, and two fp32 copies while the softmax is computed
    (on a GPU for all rows together; a CPU takes some rows at a time)."""
    per_logit = 2 * width + 8
    return MemoryPart(
        "trainer",
        "logits",
        HEAD_CHUNK_TOKENS * size.vocabulary * per_logit,
        f"{HEAD_CHUNK_TOKENS} tokens x {count(size.vocabulary)} x {per_logit}",
    )


ASSUMED_TOKENS = 1024
"""Tokens of a sequence in flight where the configuration sets no `engine.max_context`."""


def model_size(config: RunConfig) -> ModelSize:
    """The sizes of a configuration's policy.

    Raises InputError when the policy is the tiny one, or its config.json is not on this machine.
    """
    traits = policy_traits(config.policy)
    if traits.model is None:
        raise InputError(
            f"policy.type: {config.policy.type} has no config.json; it needs almost no memory besides that "
            "of the program"
        )
    if traits.lora is None:
        return read_model_size(traits.model)
    return read_model_size(traits.model, traits.lora.rank, traits.lora.target_modules)


def training_processes(config: RunConfig) -> int | None:
    """Over how many processes the trainer spreads weights, gradients and state; None where it does not."""
    count: int | None = plugins("trainers")[config.trainer.type].value.processes(config.trainer)
    return count


def distils(config: RunConfig) -> bool:
    """Whether an iteration makes a supervised update."""
    planned = plan_run(config, unread_sources(config), iterations=1).nodes
    return any(isinstance(node.settings, FineTuneSettings) for node in planned)


def longest_sequence(config: RunConfig) -> int:
    """Tokens of a sequence in flight: `engine.max_context`, else 1,024."""
    return _capacity(config).max_tokens or ASSUMED_TOKENS


def _capacity(config: RunConfig) -> SamplingCapacity:
    rollouts = config.rollouts
    capacity: SamplingCapacity = plugins("engines")[config.engine.type].value.capacity(
        config.engine, rollouts.tasks_per_shard * rollouts.group_size
    )
    return capacity


def estimate_memory(
    config: RunConfig, size: ModelSize, sequence_tokens: int | None = None
) -> list[MemoryPart]:
    """Memory of training and sampling with these settings, for a policy of these sizes.

    The program and its libraries, what a GPU's driver takes, and what an engine keeps for its own computation
    are left out.

    Args:
        sequence_tokens: tokens of a sequence in flight; default: `engine.max_context`, else 1,024.
    """
    traits = policy_traits(config.policy)
    dtype = traits.dtype
    processes = training_processes(config)
    own = config.trainer
    sums: GradientSums = own.passes.gradient_sums if isinstance(own, PassSettings) else "microbatch"
    # Both updates hold the same weights and state; the one with more tokens at a time decides.
    passes = [config.update, *([config.fine_tune] if distils(config) else [])]
    estimates = [
        training_memory(
            size,
            dtype,
            config.optimizer,
            each,
            uses=len(passes),
            processes=processes,
            head_dtype=traits.head_dtype,
            gradient_sums=sums,
        )
        for each in passes
    ]
    warm_start = traits.warm_start
    if warm_start is not None:  # it trains all weights, also where an adapter is trained afterwards
        whole = replace(size, adapter_parameters=0)
        estimates.append(
            training_memory(
                whole,
                dtype,
                config.optimizer,
                warm_start,
                processes=processes,
                head_dtype=traits.head_dtype,
                gradient_sums=sums,
            )
        )
    training = max(estimates, key=lambda parts: sum(part.bytes for part in parts))
    capacity = _capacity(config)
    tokens = sequence_tokens or longest_sequence(config)
    width = BYTES[capacity.dtype or dtype]
    sampling = sampling_memory(size, width, capacity.sequences, tokens, capacity.weight_copies)
    return [*training, *_host_copies(config, size, dtype, len(passes)), *sampling]


def _host_copies(config: RunConfig, size: ModelSize, dtype: Precision, uses: int) -> list[MemoryPart]:
    """What processes that share a policy keep in host memory between their updates, all together."""
    trainer: TrainerPlugin[Any] = plugins("trainers")[config.trainer.type].value
    if trainer.processes(config.trainer) is None:
        return []
    width, trained = BYTES[dtype], size.adapter_parameters or size.parameters
    optimizer = config.optimizer
    state = 4 * _copies_weights(dtype, optimizer) + 8 * _moment_sets(optimizer, uses)
    parts = []
    if config.store.background_bytes() is not None:
        parts.append(("the state until it is written", trained, state))
    if trainer.sleeps(config.trainer):
        frozen = size.parameters if size.adapter_parameters else 0
        parts.append(("weights while it sleeps", trained + frozen, width))
        if optimizer.state_device == "model":
            parts.append(("the state while it sleeps", trained, state))
    return [
        MemoryPart("trainer's host", name, numbers * each, f"{count(numbers)} x {each}")
        for name, numbers, each in parts
    ]
