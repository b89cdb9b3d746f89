"""Making all arms take the same number of optimizer steps in an iteration."""

from __future__ import annotations

from collections.abc import Mapping

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.fine_tune import FINE_TUNE
from erl_pipeline.stages.update_policy import UPDATE_POLICY
from storage.errors import ConfigError


def planned_steps(config: RunConfig) -> tuple[int, int]:
    """Reinforcement updates in an iteration, and its supervised optimizer steps; the most there can be."""
    plan = plan_run(config, unread_sources(config), iterations=1)
    stages = [node.stage.name for node in plan.of_iteration(1)]
    return stages.count(UPDATE_POLICY.name), stages.count(FINE_TUNE.name) * config.fine_tune.steps


def levelled(arms: Mapping[str, RunConfig]) -> dict[str, tuple[str, ...]]:
    """The overrides by which each arm takes as many steps as the one that takes most.

    They are further passes over the rollouts: with one step against four, an arm without a supervised stage
    looks about twice as bad as it is.

    Raises ConfigError where no whole number of passes gives as many.
    """
    planned = {name: planned_steps(config) for name, config in arms.items()}
    totals = {
        name: updates * arms[name].update.optimizer_steps + supervised
        for name, (updates, supervised) in planned.items()
    }
    most = max(totals.values())
    overrides: dict[str, tuple[str, ...]] = {}
    for name, (updates, supervised) in planned.items():
        minibatches = arms[name].update.minibatches
        epochs, rest = divmod(most - supervised, max(1, updates * minibatches))
        if rest or not updates:
            raise ConfigError(
                f"arm {name}: with update.minibatches: {minibatches} no number of passes over the rollouts "
                f"gives the {most} optimizer steps of an iteration that the other arms take ({supervised} "
                "are supervised); allowed are divisors, such as 1"
            )
        overrides[name] = () if totals[name] == most else (f"update.epochs={epochs}",)
    return overrides
