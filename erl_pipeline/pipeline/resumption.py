"""Going on with a run at the newest iteration that its ledger has whole, however many came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from erl_pipeline.pipeline.context import OtherArtifact, RunContext
from erl_pipeline.pipeline.run_state import whole_iterations
from storage.errors import DamagedArtifact, InputError

T = TypeVar("T")


def newest_whole_iteration(context: RunContext, iterations: int) -> int:
    """Where a run that is to come to `iterations` goes on; 0 where it has to begin."""
    return min(iterations, whole_iterations(context.config, context.recorded()))


def go_over(context: RunContext, iteration: int, stages: Callable[[], T]) -> T | None:
    """Call `stages`, which go over an iteration that the ledger has whole; None where that is not enough.

    Every stage finds and verifies its artifact, and makes it again where it is damaged. The recipes of
    artifacts chain by their ids: where they come to the ids of the ledger here, so they do in all that came
    before. Where they do not, or something older that is needed is damaged or gone, the listener is told why.
    """
    try:
        with context.held_to_ledger():
            return stages()
    except (OtherArtifact, DamagedArtifact, InputError) as reason:
        told = str(reason).rstrip(".")
        context.listener.warn(
            f"{told}. So the run does not go on at iteration {iteration} but is gone over from its start."
        )
        return None
