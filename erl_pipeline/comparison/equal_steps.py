"""Making all arms take the same number of optimizer steps in an iteration."""

from __future__ import annotations

from collections.abc import Mapping

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.training.fine_tune import FINE_TUNE
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY
from storage.errors import ConfigError


def planned_steps(config: RunConfig) -> tuple[int, int]:
    """The largest number of reinforcement-learning updates in an iteration, and of supervised optimizer
    steps."""
    plan = plan_run(config, unread_sources(config), iterations=1)
    stages = [node.stage.name for node in plan.of_iteration(1)]
    return stages.count(UPDATE_POLICY.name), stages.count(FINE_TUNE.name) * config.fine_tune.steps


def levelled(arms: Mapping[str, RunConfig]) -> dict[str, tuple[str, ...]]:
    """The overrides with which each arm takes as many optimizer steps in an iteration as the arm that takes
    most.

    They set more passes over the rollouts or, for an arm that has only a supervised stage, more steps of that
    stage. Without them, an arm with one step against four looks about twice as bad as it is.

    Raises ConfigError if no whole number of passes gives as many steps.
    """
    planned = {name: planned_steps(config) for name, config in arms.items()}
    totals = {
        name: updates * arms[name].update.optimizer_steps + supervised
        for name, (updates, supervised) in planned.items()
    }
    most = max(totals.values())
    return {
        name: () if totals[name] == most else (_more_steps(name, arms[name], *planned[name], most),)
        for name in arms
    }


def _more_steps(name: str, config: RunConfig, updates: int, supervised: int, most: int) -> str:
    minibatches = config.update.minibatches
    if supervised and not updates:
        key, (count, rest) = "fine_tune.steps", divmod(most * config.fine_tune.steps, supervised)
    else:
        key, (count, rest) = "update.epochs", divmod(most - supervised, max(1, updates * minibatches))
    if rest or not (updates or supervised):
        raise ConfigError(
            f"arm {name}: with update.minibatches: {minibatches} no number of passes over the rollouts gives "
            f"the {most} optimizer steps of an iteration that another arm takes ({supervised} are "
            "supervised); allowed are divisors, such as 1"
        )
    return f"{key}={count}"
