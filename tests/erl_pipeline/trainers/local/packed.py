"""Microbatches that are built at once, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from erl_pipeline.trainers.local.attention import SegmentAttention
from erl_pipeline.trainers.local.packing import Microbatch, plan_rows, plan_segments
from erl_pipeline.trainers.sequences import TrainingSequence

CPU = torch.device("cpu")


def pack_segments(
    sequences: Sequence[TrainingSequence], microbatch_tokens: int, attention: SegmentAttention = "blocks"
) -> list[Microbatch]:
    return [planned.build() for planned in plan_segments(sequences, microbatch_tokens, CPU, attention)]


def pack_rows(sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[Microbatch]:
    return [planned.build() for planned in plan_rows(sequences, microbatch_tokens, CPU)]
