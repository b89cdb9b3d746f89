"""Stopping before a loss or gradient that is not finite reaches the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import TrainingDiverged

_NAMED_TRAJECTORIES = 8


def raise_if_diverged(step: int, numbers: Mapping[str, float], sequences: Sequence[TrainingSequence]) -> None:
    """Raise `TrainingDiverged` where a number of optimizer step `step` (from 1) is not finite.

    The message holds the step, all numbers (loss parts, gradient norm), the trajectories of the batch
    and what to try. It is called before the step is taken, so no weight has changed.
    """
    if all(math.isfinite(number) for number in numbers.values()):
        return
    shown = ", ".join(f"{name} {number:.4g}" for name, number in numbers.items())
    named = ", ".join(sequence.trajectory_id for sequence in sequences[:_NAMED_TRAJECTORIES])
    more = len(sequences) - _NAMED_TRAJECTORIES
    raise TrainingDiverged(
        f"training diverged at optimizer step {step}: {shown}. The batch held {named}"
        f"{f' and {more} more' if more > 0 else ''}. The step was not taken and the last checkpoint is "
        "unchanged. Try a lower optimizer.learning_rate or optimizer.max_grad_norm, policy.dtype float32, or "
        "look at the stored log-probabilities and rewards of these trajectories."
    )
