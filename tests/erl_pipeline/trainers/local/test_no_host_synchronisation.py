"""The passes of an update on torch's fake tensors, which have shapes and no content: an operation whose
result would decide a shape or a branch raises. On a GPU it would wait for all that the GPU has been given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import PreTrainedModel

from erl_pipeline.config.objective import DecoupledCorrection, ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.trainers.local.attention import SEGMENTS
from erl_pipeline.trainers.local.forward import PackedAttention, PolicyForward
from erl_pipeline.trainers.local.observations import BatchLog, Statistics
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.policy_loss import PolicyLoss, ReplayedPart
from erl_pipeline.trainers.local.tokens import role_columns, token_columns
from erl_pipeline.trainers.sequences import TrainingSequence

REPLAY = ReplayLoss(role="replay", corrected=True, shaping_beta=0.1, weight_cap=None, clip=True)
OBJECTIVES = {
    "plain": ObjectiveConfig(),
    "all terms": ObjectiveConfig(
        kl_coefficient=0.1,
        entropy_coefficient=0.1,
        correction=DecoupledCorrection(type="decoupled", level="sequence"),
    ),
}


def update(
    model: PreTrainedModel,
    sequences: Sequence[TrainingSequence],
    attention: PackedAttention,
    objective: ObjectiveConfig,
    checkpointing: bool,
) -> int:
    """One optimizer step without the numbers that are read in the end; returns the number of passes."""
    rows = [replace(row, role="replay") if place % 2 else row for place, row in enumerate(sequences)]
    forward = PolicyForward(model, attention)
    if forward.shares_prompts:
        model.set_attn_implementation(SEGMENTS)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    optimizer = PolicyOptimizer(model, OptimizerConfig())
    columns = token_columns(rows, objective.loss_normalization, forward.device)
    roles = role_columns(rows, objective, ("first_attempt", "replay"), forward.device)
    olds = forward.logprobs(rows, columns.temperatures, 20)
    loss = PolicyLoss(
        objective,
        columns,
        roles,
        old_logprobs=olds if isinstance(objective.correction, DecoupledCorrection) else None,
        reference_logprobs=olds if objective.needs_reference else None,
        statistics=Statistics(),
        measure_mismatch=True,
        log=BatchLog(len(columns.sequence), forward.device),
        replayed=ReplayedPart(REPLAY, columns, roles),
    )
    passes = forward.backward_batch(rows, columns.temperatures, 20, loss.of, optimizer.collect_gradients)
    optimizer.hand_over_gradients()
    optimizer.step()
    return passes.microbatches


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES.keys())
@pytest.mark.parametrize("attention", ["blocks", "flash", "rows"])
def test_passes_never_wait_for_the_device(
    make_model: Callable[[], PreTrainedModel],
    sequences: list[TrainingSequence],
    attention: PackedAttention,
    objective: ObjectiveConfig,
    checkpointing: bool,
) -> None:
    with FakeTensorMode():
        assert update(make_model(), sequences, attention, objective, checkpointing) >= 2


def test_fake_tensors_notice_a_wait() -> None:
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.zeros(3).sum().item()


def test_built_in_kernels_of_blocks_never_wait() -> None:
    from erl_pipeline.trainers.local.block_attention import Segment, Segments, block_segments, fused_attention

    with FakeTensorMode():
        prepared = block_segments(Segments.of([Segment(0, 5), Segment(5, 3, 0, 5)]), torch.device("cpu"))
        query, key, value = (torch.zeros(heads, 8, 4, requires_grad=True) for heads in (2, 1, 1))
        fused_attention(query, key, value, prepared, 1.0).sum().backward()
        assert key.grad is not None
