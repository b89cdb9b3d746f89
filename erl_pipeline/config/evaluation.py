"""Settings of the evaluation that follows an iteration."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class EvaluationConfig(Settings):
    """First attempts on held-out tasks, without memory, feedback or reflection in the prompt."""

    every: int = Field(default=1, ge=1)
    """Evaluate after every so many iterations, and always before the first and after the last."""
    tasks: int = Field(default=256, ge=1)
    """Held-out tasks."""
    samples_per_task: int = Field(default=0, ge=0, le=64)
    """Sampled attempts of each task beside the greedy one; 0 leaves them out."""
    whole_episodes: bool = False
    """Also play on after a failed greedy attempt as the method does in training, without memory, and report
    the success of that."""
