"""A comparison at work: the search, the rounds by which arms get equal tokens, and the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from command_line.compare.processes import do_tasks
from erl_pipeline.comparison import runs as trainings
from erl_pipeline.comparison.arms import SearchSettings
from erl_pipeline.comparison.bootstrap import Outcomes
from erl_pipeline.comparison.design import ComparedRun, Design, with_chosen
from erl_pipeline.comparison.measures import (
    Budgets,
    Curve,
    as_if_it_stayed,
    find_budgets,
    iterations_to_spend,
)
from erl_pipeline.comparison.opened_split import opened_sentence, split_use
from erl_pipeline.comparison.result import Failure, Result, SplitHistory, make_result
from erl_pipeline.comparison.search import Search, judge_trials, search_tokens
from erl_pipeline.evaluation.history import CurvePoint
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.runs.run_plans import plan_run
from storage.errors import InputError, Interrupted
from storage.runs.split_openings import SplitUse, open_test_split, opened_before, openings
from storage.texts import counted

T = TypeVar("T")
Curves = dict[str, dict[int, list[CurvePoint]]]

_LONGEST_TRIAL, _LONGEST_RUN = 4, 10
"""So many times its planned iterations a trial of a search, and a run that is tested, is trained at most. One
that has collapsed to answers of a token would take hundreds of iterations to generate as much as the
others."""


@dataclass
class Rounds:
    """A comparison at work in a store."""

    design: Design
    store_uri: str
    jobs: int
    threads: int
    stop: threading.Event
    notify: Callable[[str], None]
    """Shows the user one line."""
    split: SplitUse = field(init=False)
    search: Search | None = None
    failures: dict[str, Failure] = field(default_factory=dict)
    """Run name -> its failure."""
    curves: Curves = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.split = split_use(self.design)

    def result(self) -> Result:
        """Do what is left to do, and make the result.

        Raises Interrupted when asked to stop, InputError if no run of any arm succeeded, or the common start
        or a trial cannot be made, ConfigError if a run exists with other settings.
        """
        if said := opened_sentence(opened_before(openings(self.store_uri), self.split), self.split):
            self.notify(said)
        if self.design.search is not None:
            self._search(self.design.search)
        self._make_starts(self.design.runs)
        self._complete([self._task(run, run.iterations) for run in self.design.runs], count=True)
        if not self.curves:
            raise InputError(f"no run succeeded: {self._reasons()}")
        # Where all runs were finished already, perhaps by an earlier version, none has recorded it.
        open_test_split(self.store_uri, self.split)
        budgets = find_budgets(
            {arm: list(seeds.values()) for arm, seeds in self.curves.items()},
            {run.arm: run.iterations for run in self.design.runs},
        )
        while longer := self._too_short(budgets):
            self._complete(longer)
        outcomes: dict[str, dict[int, Outcomes]] = self._of_each(
            lambda run: trainings.read_outcomes(run, self.store_uri)
        )
        early = self._end_early(budgets.generated_tokens, outcomes)
        return make_result(
            self.design,
            budgets,
            self.curves,
            self._of_each(lambda run: trainings.read_training(run, self.store_uri, run.iterations)),
            outcomes,
            tuple(self.failures.values()),
            SplitHistory(self.split, tuple(opened_before(openings(self.store_uri), self.split))),
            self.search,
            early,
        )

    def _search(self, settings: SearchSettings) -> None:
        """Make all trials on held-out tasks, and give each arm the settings of its best one.

        Raises InputError if a trial failed: another one would be chosen if it were made again later, and the
        test split must not be open by then.
        """
        runs = [run for trial in self.design.trials for run in trial.runs]
        self._make_starts(runs)
        self.notify(
            f"Search on held-out tasks: {counted(settings.budget, 'trial')} of each arm, "
            f"{counted(settings.seeds, 'seed')} each"
        )
        planned = [self._task(run, run.iterations, on_test=False) for run in runs]
        curves = self._try(planned, count=True)
        tokens = search_tokens(self.design, curves)
        while longer := self._longer_trials(runs, curves, tokens):
            curves |= self._try(longer)
        self.search, chosen = judge_trials(self.design, settings.measure, tokens, curves)
        self.design = with_chosen(self.design, chosen)
        for arm, trial in chosen.items():
            self.notify(f"{arm}: {', '.join(trial.settings)}")

    def _try(self, tasks: Sequence[trainings.TrainingTask], count: bool = False) -> dict[str, Curve]:
        """Train trials to their numbers of iterations; run name -> its curve on held-out tasks."""
        self._do(tasks, count)
        if self.failures:
            raise InputError(
                f"trials of the search failed, so nothing is evaluated on test tasks: {self._reasons()}. Run "
                "the same command to try again, or search other values"
            )
        runs = [task.run for task in tasks]
        return {run.config.name: trainings.read_held_out_curve(run, self.store_uri) for run in runs}

    def _longer_trials(
        self, runs: Sequence[ComparedRun], curves: Mapping[str, Curve], tokens: int
    ) -> list[trainings.TrainingTask]:
        longer = []
        for run in runs:
            curve, most = curves[run.config.name], _LONGEST_TRIAL * run.iterations
            if curve[-1].generated_tokens < tokens and curve[-1].iteration < most:
                with suppress(ValueError):  # It generates nothing.
                    most = min(most, iterations_to_spend(curve, tokens, run.iterations))
                longer.append(self._task(run, most, on_test=False))
        return longer

    def _reasons(self) -> str:
        return "; ".join(f"{each.run}: {each.message}" for each in self.failures.values())

    def _make_starts(self, runs: Sequence[ComparedRun]) -> None:
        """Make each first checkpoint once, before several runs need it at the same time."""
        starts: dict[str, ComparedRun] = {}
        for run in runs:
            plan = plan_run(run.config, run.sources, iterations=0)
            starts.setdefault(plan.states[0].models[POLICY], run)
        self._do([self._task(run, 0) for run in starts.values()])
        if self.failures:
            failure = next(iter(self.failures.values()))
            raise InputError(f"the start that runs share cannot be made: {failure.message}")

    def _complete(self, tasks: Sequence[trainings.TrainingTask], count: bool = False) -> None:
        """Train runs to their numbers of iterations, and read their curves."""
        self._do(tasks, count)
        for run in (task.run for task in tasks):
            if run.config.name in self.failures:
                self._forget(run)
            else:
                self.curves.setdefault(run.arm, {})[run.seed] = trainings.read_curve(run, self.store_uri)

    def _task(self, run: ComparedRun, iterations: int, on_test: bool = True) -> trainings.TrainingTask:
        return trainings.TrainingTask(run, self.store_uri, iterations, self.split if on_test else None)

    def _do(self, tasks: Sequence[trainings.TrainingTask], count: bool = False) -> None:
        """Do what is left of some tasks. Only those that each run has once are counted, so that there is one
        count."""
        left = [task for task in tasks if not trainings.is_done(task)]
        number = len(tasks) - len(left)

        def ended(task: trainings.TrainingTask, failure: str | None) -> None:
            nonlocal number
            number += 1
            run = task.run
            if failure:
                self.failures[run.config.name] = Failure(run.config.name, run.arm, run.seed, failure)
            what = counted(task.iterations, "iteration") if task.iterations else "the start"
            how = "stopped" if failure is None else f"failed: {failure}" if failure else what
            self.notify(f"{f'[{number} of {len(tasks)}] ' if count else ''}{run.config.name}: {how}")

        if len(left) < len(tasks) > 1:
            self.notify(f"{len(tasks) - len(left)} of {counted(len(tasks), 'run')} finished already.")
        do_tasks(left, self.jobs, self.threads, self.stop, ended, self.notify)
        if self.stop.is_set():
            raise Interrupted

    def _too_short(self, budgets: Budgets) -> list[trainings.TrainingTask]:
        """Tasks for the runs that have generated too few tokens yet, with the iterations that they need or
        may have. One that generates nothing has failed."""
        longer: list[trainings.TrainingTask] = []
        for run, curve in self._with_curves():
            most = _LONGEST_RUN * run.iterations
            if curve[-1].iteration >= most:
                continue
            try:
                iterations = iterations_to_spend(curve, budgets.generated_tokens, run.iterations)
            except ValueError as error:
                failure = Failure(run.config.name, run.arm, run.seed, str(error))
                self.failures[run.config.name] = failure
                self._forget(run)
            else:
                if iterations > curve[-1].iteration:
                    longer.append(self._task(run, min(iterations, most)))
        return longer

    def _end_early(self, tokens: int, outcomes: Mapping[str, dict[int, Outcomes]]) -> tuple[str, ...]:
        """Let the last success of each run that has too few tokens stay; returns the names of these runs."""
        names = []
        for run, curve in self._below(tokens):
            self.curves[run.arm][run.seed] = as_if_it_stayed(curve, tokens)
            at_points = outcomes[run.arm][run.seed]
            outcomes[run.arm][run.seed] = {task: [*solved, solved[-1]] for task, solved in at_points.items()}
            names.append(run.config.name)
        return tuple(names)

    def _below(self, tokens: int) -> list[tuple[ComparedRun, list[CurvePoint]]]:
        """The runs that have generated fewer tokens than this, and their curves."""
        return [(run, curve) for run, curve in self._with_curves() if curve[-1].generated_tokens < tokens]

    def _with_curves(self) -> list[tuple[ComparedRun, list[CurvePoint]]]:
        """The runs that did not fail, and their curves."""
        found = ((run, self.curves.get(run.arm, {}).get(run.seed)) for run in self.design.runs)
        return [(run, curve) for run, curve in found if curve]

    def _forget(self, run: ComparedRun) -> None:
        """Remove a failed run from the curves, so that no figure includes it."""
        self.curves.get(run.arm, {}).pop(run.seed, None)
        if not self.curves.get(run.arm, True):
            del self.curves[run.arm]

    def _of_each(self, read: Callable[[ComparedRun], T]) -> dict[str, dict[int, T]]:
        """Arm -> seed -> what is read of the run; of those that have a curve."""
        runs = {(run.arm, run.seed): run for run in self.design.runs}
        return {arm: {seed: read(runs[arm, seed]) for seed in seeds} for arm, seeds in self.curves.items()}
