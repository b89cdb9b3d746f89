"""Settings that say which tasks an iteration draws."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from erl_pipeline.config.base import Settings


class UniformSelection(Settings):
    """All tasks in a seeded order over successive iterations, then all again in another order."""

    type: Literal["uniform"] = "uniform"


class ResultSettings(Settings):
    """How the success of first attempts at a task is estimated from stored results."""

    prior: float = Field(default=0.5, ge=0.0, le=1.0)
    """The success that is expected for a task type before any of its tasks was tried."""
    prior_tries: float = Field(default=2.0, gt=0.0)
    """The expectation counts as much as this many tries. For a type it is `prior`; for a task it is the
    success of its type, so that a task that was never tried is expected to be like the others."""
    discount: float = Field(default=0.9, gt=0.0, le=1.0)
    """Each iteration with new results multiplies the weight of all earlier results by this, since the policy
    has changed. 1: all count the same."""


class ByDifficultySelection(Settings):
    """Tasks whose expected success is near a target are drawn more often. If all attempts of a group succeed,
    or all fail, the group gives no advantage."""

    type: Literal["by_difficulty"] = "by_difficulty"
    target: float = Field(default=0.5, ge=0.0, le=1.0)
    """The expected success of first attempts to aim for."""
    width: float = Field(default=0.2, ge=0.01)
    """A task's weight is exp(-(expected - target)^2 / (2 width^2))."""
    new: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of tasks drawn uniformly from those never tried, while there are any. The others are drawn by
    weight from those that were tried."""
    results: ResultSettings = ResultSettings()


class EasyToHardSelection(Settings):
    """Tasks are ordered from easy to hard, and a window moves over them: it begins with the easiest and ends
    with the hardest. All tasks in the window are equally likely to be drawn."""

    type: Literal["easy_to_hard"] = "easy_to_hard"
    by: Literal["environment", "results"] = "environment"
    """The order. `environment`: by the difficulty that the environment gives each task, such as the length of
    the shortest path. `results`: by the expected success of first attempts."""
    window: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the tasks that are in the window; more if an iteration needs more."""
    over: int = Field(default=20, ge=2)
    """The iteration in which the window reaches the hardest tasks; it then stays there."""
    results: ResultSettings = ResultSettings()
    """Only with `by: results`."""


def _named(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


SelectionConfig = Annotated[
    Annotated[UniformSelection | ByDifficultySelection | EasyToHardSelection, Field(discriminator="type")],
    BeforeValidator(_named),
]
"""How tasks are drawn; a bare name takes its defaults."""


def results_of(selection: SelectionConfig) -> ResultSettings | None:
    """How stored results are used; None if tasks are drawn without them."""
    if isinstance(selection, ByDifficultySelection):
        return selection.results
    if isinstance(selection, EasyToHardSelection) and selection.by == "results":
        return selection.results
    return None
