"""Making all arms take the same number of policy steps in an iteration, without too many passes over the same
rollouts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.training.distillation import FINE_TUNE
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY
from storage.errors import ConfigError

MOST_PASSES = 4
"""The most passes over the same rollouts by which steps are made equal. With 13 passes RLVR lost what it knew
before training; with 4 it did not."""


@dataclass(frozen=True)
class PlannedSteps:
    """The most optimizer steps that the policy takes in an iteration of `tasks` tasks: `updates` of
    reinforcement learning with `per_pass` steps in each pass over the rollouts, and supervised steps."""

    tasks: int
    updates: int
    per_pass: int
    passes: int
    supervised: int

    @property
    def total(self) -> int:
        """All steps of an iteration."""
        return self.with_passes(self.passes)

    def with_passes(self, passes: int) -> int:
        """All steps of an iteration, with another number of passes."""
        return self.updates * self.per_pass * passes + self.supervised


def planned_steps(config: RunConfig) -> PlannedSteps:
    """The policy's steps in an iteration. Those of other models, such as an extractor, are not counted."""
    plan = plan_run(config, unread_sources(config), iterations=1)
    stages = [node.stage.name for node in plan.of_iteration(1)]
    return PlannedSteps(
        tasks=config.rollouts.tasks_per_iteration,
        updates=stages.count(UPDATE_POLICY.name),
        per_pass=config.update.minibatches,
        passes=config.update.epochs,
        supervised=stages.count(FINE_TUNE.name) * config.fine_tune.steps,
    )


def iterations_for_the_same_tasks(iterations: int, tasks: int, config: RunConfig) -> int:
    """How many iterations an arm needs to draw as many tasks as `iterations` of `tasks` tasks each."""
    return math.ceil(iterations * tasks / config.rollouts.tasks_per_iteration)


def with_equal_steps(
    arms: Mapping[str, RunConfig], tasks: int, iterations: int
) -> dict[str, tuple[str, ...]]:
    """The overrides with which each arm takes as many policy steps in an iteration as the one with most.

    They set more passes over the rollouts or, for an arm that has only a supervised stage, more steps of that
    stage. Without them, an arm with one step against four looks about twice as bad as it is. An arm with a
    number of tasks of its own is left as it is: it gets its steps from fresh rollouts. So is one that never
    changes the weights.

    Args:
        tasks: tasks in an iteration of the base configuration.
        iterations: of an arm with so many tasks.

    Raises ConfigError if no whole number of passes gives as many steps, or if it takes more than
    `MOST_PASSES`, also by an arm's own settings; the error then names settings with which fresh rollouts give
    these steps.
    """
    planned = {name: planned_steps(config) for name, config in arms.items()}
    for name, each in planned.items():
        refuse_many_passes(name, each, iterations_for_the_same_tasks(iterations, tasks, arms[name]))
    same = {name: each for name, each in planned.items() if each.tasks == tasks}
    most = max((each.total for each in same.values()), default=0)
    return {
        name: (_more_steps(name, arms[name], each, most, iterations),)
        if name in same and each.total not in (0, most)
        else ()
        for name, each in planned.items()
    }


def refuse_many_passes(name: str, planned: PlannedSteps, iterations: int) -> None:
    """Raise ConfigError if the arm's own settings make more than `MOST_PASSES` over the same rollouts.

    Args:
        iterations: of this arm.
    """
    if planned.updates and planned.passes > MOST_PASSES:
        raise ConfigError(
            f"arm {name}: update.epochs: {planned.passes} passes over the same rollouts; allowed are "
            f"{MOST_PASSES}, since more make a policy worse. "
            f"{_fresh_instead(planned, planned.total, iterations)}"
        )


def _more_steps(name: str, config: RunConfig, planned: PlannedSteps, most: int, iterations: int) -> str:
    in_a_pass = planned.updates * planned.per_pass
    if planned.supervised and not planned.updates:
        key, (count, rest) = "fine_tune.steps", divmod(most * config.fine_tune.steps, planned.supervised)
    else:
        key, (count, rest) = "update.epochs", divmod(most - planned.supervised, max(1, in_a_pass))
        if in_a_pass and (most - planned.supervised) / in_a_pass > MOST_PASSES:
            raise ConfigError(_too_many_passes(name, planned, most, iterations))
    if rest or not (planned.updates or planned.supervised):
        raise ConfigError(
            f"arm {name}: with update.minibatches: {planned.per_pass} no number of passes over the rollouts "
            f"gives the {most} optimizer steps of an iteration that another arm takes ({planned.supervised} "
            "are supervised); allowed are divisors, such as 1"
        )
    return f"{key}={count}"


def _too_many_passes(name: str, planned: PlannedSteps, most: int, iterations: int) -> str:
    needed = (most - planned.supervised) / (planned.updates * planned.per_pass)
    return (
        f"arm {name}: {needed:g} passes over the same rollouts would be needed for the {most} optimizer "
        f"steps that another arm takes for {planned.tasks} tasks; allowed are {MOST_PASSES}, since more make "
        f"a policy worse. {_fresh_instead(planned, most, iterations)}"
    )


def _fresh_instead(planned: PlannedSteps, most: int, iterations: int) -> str:
    """The number of tasks and passes with which steps for a task are most nearly those of `most` steps."""

    def tasks(passes: int) -> int:
        return max(1, round(planned.tasks * planned.with_passes(passes) / most))

    def inequality(passes: int) -> float:
        return abs(planned.with_passes(passes) / tasks(passes) * planned.tasks / most - 1)

    best = min(range(1, MOST_PASSES + 1), key=inequality)
    longer = math.ceil(iterations * planned.tasks / tasks(best))
    return (
        "Give it fresh rollouts instead: in this arm, set "
        f"rollouts.tasks_per_iteration: {tasks(best)} and update.epochs: {best}. It then takes "
        f"{planned.with_passes(best)} steps for {tasks(best)} tasks, and is trained for {longer} iterations "
        f"instead of {iterations}"
    )
