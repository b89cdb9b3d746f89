"""Learning curves made by hand."""

from __future__ import annotations

from erl_pipeline.evaluation.history import CurvePoint


def curve(tokens_per_iteration: int, *success: float, steps_per_iteration: int = 4) -> list[CurvePoint]:
    """A curve with an evaluation after every iteration; each iteration has 8 episodes and takes 2 seconds."""
    return [
        CurvePoint(
            iteration=iteration,
            success=rate,
            low=rate,
            high=rate,
            generated_tokens=tokens_per_iteration * iteration,
            episodes=8 * iteration,
            policy_steps=steps_per_iteration * iteration,
            extractor_steps=0,
            seconds=2.0 * iteration,
        )
        for iteration, rate in enumerate(success)
    ]
