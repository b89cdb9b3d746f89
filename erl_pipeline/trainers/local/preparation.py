"""Setting a transformers model up for training passes, after a trial on a few tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from erl_pipeline.trainers.interface import DEFAULT_PASSES, AttentionSetting, Passes
from erl_pipeline.trainers.local import packing
from erl_pipeline.trainers.local.attention import SEGMENTS, SegmentAttention, choose_attention
from erl_pipeline.trainers.local.forward import PackedAttention, PolicyForward, trial_sequence
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import ConfigError, InputError

_TRIED: WeakKeyDictionary[PreTrainedModel, dict[SegmentAttention, bool]] = WeakKeyDictionary()
"""Results of `_takes_segments`, while the model lives: its weights change from update to update, its layers
do not."""


@contextmanager
def ready_for_training(
    model: PreTrainedModel,
    gradient_checkpointing: bool,
    ranks: packing.Ranks = packing.ALONE,
    passes: Passes = DEFAULT_PASSES,
) -> Iterator[PolicyForward]:
    """Set a model up for training passes and leave it as it was, in evaluation mode.

    Dropout stays off: the policy that is trained must be the one that sampled. Whether its attention takes
    segments is tested on a few tokens, once for each model.

    Raises:
        InputError: logits are not simply the output layer of the last hidden state.
        ConfigError: the attention that is asked for cannot be had.
    """
    if model.base_model is model:
        raise InputError(
            f"{type(model).__name__} cannot be trained: it has no inner model that gives hidden states. "
            "Choose another policy.model."
        )
    # Small logits are hardly changed by it, so that the trial below would not show it.
    if getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        raise InputError(
            f"{type(model).__name__} cannot be trained: its logits are capped (final_logit_softcapping in "
            "its config.json). Choose another policy.model."
        )
    before = model.config._attn_implementation
    chosen = choose_attention(passes.attention, model)
    tried = _TRIED.setdefault(model, {})
    model.eval()
    try:
        if chosen not in tried:
            tried[chosen] = _takes_segments(model, chosen, ranks)
        packed = packed_attention(passes.attention, chosen, tried[chosen])
        model.set_attn_implementation(before if packed == "rows" else SEGMENTS)
        with (
            compiled_blocks(model) if passes.compile_blocks else nullcontext(),
            checkpointed_blocks(model) if gradient_checkpointing else nullcontext(),
        ):
            yield PolicyForward(model, packed, ranks, passes.gradient_sums)
    finally:
        ranks.let_go_of_weights(model)
        model.set_attn_implementation(before)
        model.eval()


def packed_attention(
    setting: AttentionSetting, chosen: SegmentAttention, takes_segments: bool
) -> PackedAttention:
    """Padded rows for a model whose attention does not take segments in the chosen way.

    Raises ConfigError where that way was asked for by its name.
    """
    if takes_segments:
        return chosen
    if setting in ("flash", "flex"):
        raise ConfigError(
            f"trainer.attention: {setting} does not fit this model: on a few tokens it failed or gave other "
            "hidden states than the model's own attention, or the model's attention has a window. Choose "
            "trainer.attention: auto, which then takes padded rows"
        )
    return "rows"


@contextmanager
def compiled_blocks(model: PreTrainedModel, backend: str = "inductor") -> Iterator[None]:
    """Within the context the model's blocks are compiled by a backend of `torch.compile`: each class of
    blocks once, for any number of tokens."""
    with _other_forward(
        blocks_of(model), lambda block: MethodType(_compiled(type(block).forward, backend), block)
    ):
        yield


@contextmanager
def checkpointed_blocks(model: PreTrainedModel) -> Iterator[None]:
    """Within the context each block keeps its input alone, and computes its activations again in the backward
    pass.

    The model's own gradient checkpointing wants blocks in training mode, in which some apply dropout. Raises
    ConfigError for a model without blocks.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise ConfigError(
            f"gradient_checkpointing: {type(model).__name__} has no blocks that could be computed again; "
            "switch it off"
        )
    with _other_forward(blocks, lambda block: partial(checkpoint, block.forward, use_reentrant=False)):
        yield


@contextmanager
def _other_forward(
    blocks: Sequence[torch.nn.Module], made: Callable[[torch.nn.Module], Callable[..., Any]]
) -> Iterator[None]:
    before = [block.__dict__.get("forward") for block in blocks]
    for block in blocks:
        block.forward = made(block)
    try:
        yield
    finally:
        for block, forward in zip(blocks, before, strict=True):
            if forward is None:
                del block.forward
            else:
                block.forward = forward


@cache
def _compiled(forward: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return torch.compile(forward, dynamic=True, backend=backend)


def blocks_of(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The layers of a model that are computed one after the other, all alike."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@torch.no_grad()
def _takes_segments(model: PreTrainedModel, attention: SegmentAttention, ranks: packing.Ranks) -> bool:
    """Whether segments give the same as rows, on two responses that share a prompt and a sequence that shares
    none; also false where the model's blocks cannot compute with segments.

    Leaves the attention on segments when the answer is true.
    """
    sequences = _trial_sequences(model.config.get_text_config().vocab_size)
    tolerance, head_tolerance = (1e-3, 1e-3) if model.dtype == torch.float32 else (5e-2, 1e-2)
    (planned,) = packing.plan_rows(sequences, 10_000, model.device)
    rows = planned.build()
    expected = PolicyForward(model, "rows", ranks).hidden(rows)
    _refuse_other_heads(model, rows, expected, head_tolerance)
    # A sliding window is longer than these few tokens, so the comparison below would not show its effect.
    if model.config.get_text_config().to_dict().get("sliding_window") is not None:
        return False
    model.set_attn_implementation(SEGMENTS)
    if model.config._attn_implementation != SEGMENTS:
        return False
    (planned,) = packing.plan_segments(sequences, 10_000, model.device, attention)
    stream = planned.build()
    try:
        actual = PolicyForward(model, attention, ranks).hidden(stream)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, RuntimeError) as error:
        # Blocks that do not hand on `segments`, or whose values are not as wide as their keys.
        logging.getLogger(__name__).warning(
            "%s is trained in padded rows: its attention failed on segments (%s)", type(model).__name__, error
        )
        return False
    return _close(actual[stream.tokens.argsort()], expected[rows.tokens.argsort()], tolerance)


def _refuse_other_heads(
    model: PreTrainedModel, rows: packing.Microbatch, hidden: torch.Tensor, tolerance: float
) -> None:
    head = model.get_output_embeddings()
    logits = (
        model(input_ids=rows.token_ids, use_cache=False).logits.flatten(0, 1).index_select(0, rows.sources)
    )
    if head is None or not _close(head(hidden), logits, tolerance):
        raise InputError(
            f"{type(model).__name__} cannot be trained: its logits are not the output layer applied to the "
            "last hidden state (they are scaled or capped afterwards). Choose another policy.model."
        )


def _close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    # Numbers that are not finite pass here: the update reports them better.
    return not bool((actual - expected).abs().max() > tolerance * expected.abs().max())


def _trial_sequences(vocabulary: int) -> list[TrainingSequence]:
    def ids(first: int, count: int) -> tuple[int, ...]:
        return tuple((first + 7 * place) % vocabulary for place in range(count))

    return [
        trial_sequence(ids(prompt, length), ids(response, count))
        for prompt, length, response, count in ((3, 5, 1, 4), (3, 5, 2, 3), (4, 3, 5, 2))
    ]
