"""The rounds of a comparison: first what runs share, then all runs up to the number of iterations asked for,
then further iterations of the runs that have generated fewer tokens than the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from command_line.compare.driver import Ended, do_tasks
from erl_pipeline.comparison.budgets import Budgets, find_budgets, iterations_to_spend
from erl_pipeline.comparison.design import ComparedRun, Design
from erl_pipeline.comparison.result import Failure, Result, make_result
from erl_pipeline.comparison.training import TrainingFigures
from erl_pipeline.comparison.work import Task, is_done, read_curve, read_training
from erl_pipeline.evaluation.history import CurvePoint
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.runs.run_plans import plan_run
from storage.errors import InputError, Interrupted
from storage.wording import counted

Curves = dict[str, dict[int, list[CurvePoint]]]


@dataclass
class Rounds:
    """A comparison at work in a store."""

    design: Design
    store_uri: str
    jobs: int
    threads: int
    stop: threading.Event
    tell: Callable[[str], None]
    """Shows the user one line."""
    failures: dict[str, Failure] = field(default_factory=dict)
    """Run name -> its failure."""
    curves: Curves = field(default_factory=dict)

    def result(self) -> Result:
        """Do what is left to do, and make the result.

        Raises Interrupted when asked to stop, InputError if no run of any arm succeeded or the common start
        cannot be made, ConfigError if a run exists with other settings.
        """
        self._make_starts()
        self._complete([self._task(run, run.iterations) for run in self.design.runs], count=True)
        if not self.curves:
            reasons = "; ".join(f"{each.run}: {each.message}" for each in self.failures.values())
            raise InputError(f"no run succeeded: {reasons}")
        budgets = find_budgets(
            {arm: list(seeds.values()) for arm, seeds in self.curves.items()},
            {run.arm: run.iterations for run in self.design.runs},
        )
        while longer := self._too_short(budgets):
            self._complete(longer)
        return make_result(self.design, budgets, self.curves, self._training(), tuple(self.failures.values()))

    def _make_starts(self) -> None:
        """Make each first checkpoint once, before several runs need it at the same time."""
        starts: dict[str, ComparedRun] = {}
        for run in self.design.runs:
            plan = plan_run(run.config, run.sources, iterations=0)
            starts.setdefault(plan.states[0].models[POLICY], run)
        self._do([self._task(run, 0) for run in starts.values()])
        if self.failures:
            failure = next(iter(self.failures.values()))
            raise InputError(f"the start that runs share cannot be made: {failure.message}")

    def _complete(self, tasks: Sequence[Task], count: bool = False) -> None:
        """Train runs to their numbers of iterations, and read their curves."""
        self._do(tasks, count)
        for run in (task.run for task in tasks):
            if run.config.name in self.failures:
                self._forget(run)
            else:
                self.curves.setdefault(run.arm, {})[run.seed] = read_curve(run, self.store_uri)

    def _task(self, run: ComparedRun, iterations: int) -> Task:
        return Task(run, self.store_uri, iterations)

    def _do(self, tasks: Sequence[Task], count: bool = False) -> None:
        """Do what is left of some tasks. Only those that each run has once are counted, so that there is one
        count."""
        left = [task for task in tasks if not is_done(task)]
        number = len(tasks) - len(left)

        def ended(end: Ended) -> None:
            nonlocal number
            number += 1
            run = end.task.run
            if end.failure:
                self.failures[run.config.name] = Failure(run.config.name, run.arm, run.seed, end.failure)
            what = counted(end.task.iterations, "iteration") if end.task.iterations else "the start"
            how = "stopped" if end.failure is None else f"failed: {end.failure}" if end.failure else what
            self.tell(f"{f'[{number} of {len(tasks)}] ' if count else ''}{run.config.name}: {how}")

        if len(left) < len(tasks) > 1:
            self.tell(f"{len(tasks) - len(left)} of {counted(len(tasks), 'run')} finished already.")
        do_tasks(left, self.jobs, self.threads, self.stop, ended, self.tell)
        if self.stop.is_set():
            raise Interrupted

    def _too_short(self, budgets: Budgets) -> list[Task]:
        """Tasks for the runs that have generated too few tokens yet, with the iterations that they need."""
        longer: list[Task] = []
        for run in self.design.runs:
            curve = self.curves.get(run.arm, {}).get(run.seed)
            if curve is None or curve[-1].generated_tokens >= budgets.generated_tokens:
                continue
            try:
                longer.append(self._task(run, iterations_to_spend(curve, budgets.generated_tokens)))
            except ValueError as error:
                failure = Failure(run.config.name, run.arm, run.seed, str(error))
                self.failures[run.config.name] = failure
                self._forget(run)
        return longer

    def _forget(self, run: ComparedRun) -> None:
        """Remove a failed run from the curves, so that no figure includes it."""
        self.curves.get(run.arm, {}).pop(run.seed, None)
        if not self.curves.get(run.arm, True):
            del self.curves[run.arm]

    def _training(self) -> dict[str, dict[int, TrainingFigures]]:
        runs = {(run.arm, run.seed): run for run in self.design.runs}
        return {
            arm: {
                seed: read_training(runs[arm, seed], self.store_uri, runs[arm, seed].iterations)
                for seed in seeds
            }
            for arm, seeds in self.curves.items()
        }
