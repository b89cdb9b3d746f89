"""One run of a comparison: checking whether it is done, carrying it out, and reading its results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.comparison.design import ComparedRun
from erl_pipeline.comparison.measures import SeedSummary, across_seeds
from erl_pipeline.evaluation.history import (
    CurvePoint,
    StageRecord,
    held_out_evaluations,
    learning_curve,
    mean_rewards,
    of_kind,
    outcomes_by_task,
    read_history,
    test_evaluations,
)
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.config import method_columns, refuse_other_settings
from erl_pipeline.runs.driver import execute_run, open_run
from erl_pipeline.runs.on_request import evaluate_on_test, plan_on_test
from erl_pipeline.runs.planning import plan_for, recorded_ids
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.train import train
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.runs.split_openings import SplitUse, open_test_split
from storage.tables.sequences import attempt_files
from storage.tables.trajectories import scan_trajectories


@dataclass(frozen=True)
class TrainingTask:
    """The task of a worker process: train a run to a number of iterations, and evaluate its checkpoints on
    the test tasks. With 0 iterations it makes what comes before the first one, which runs can share.

    `opens` is recorded before the first evaluation on the test tasks; None: there is none, as in a search."""

    run: ComparedRun
    store_uri: str
    iterations: int
    opens: SplitUse | None = None


def run_task(task: TrainingTask, listener: Listener, stop: threading.Event) -> None:
    """Do what is left of a task; what is committed is reused.

    Raises whatever a stage raises, RunBusy if another process works on the run, and Interrupted when `stop`
    is set.
    """
    run = task.run
    with open_run(run.config, task.store_uri, listener, stop) as opened:
        if task.iterations == 0:
            execute_run(opened, plan_run(run.config, run.sources, iterations=0), frozenset())
        else:
            train(opened, task.iterations)
            if task.opens is None:
                return
            open_test_split(task.store_uri, task.opens)
            evaluate_on_test(opened, _plan(run, task.store_uri, task.iterations))


def is_done(task: TrainingTask) -> bool:
    """Whether the run's ledger has all artifacts of the task.

    Raises ConfigError if the run exists with other settings.
    """
    runs = RunStore(task.store_uri)
    run = task.run
    if run.config.name not in runs.list():
        return False
    stored = runs.open(run.config.name)
    recorded = recorded_ids(stored.recorded())
    if not recorded:
        return False
    refuse_other_settings(stored, run.config)
    if task.iterations == 0:
        nodes = [*plan_run(run.config, run.sources, iterations=0).nodes]
    else:
        nodes = _planned(run, task.store_uri, task.iterations, on_test=task.opens is not None)
    return all(recorded.get(node.place) == node.artifact_id for node in nodes)


def read_curve(run: ComparedRun, store_uri: str) -> list[CurvePoint]:
    """The learning curve of a run on the test tasks. Raises StoreError if an artifact is missing."""
    history = read_history(ArtifactStore(store_uri), RunStore(store_uri).open(run.config.name))
    return learning_curve(history, _of_run(run, store_uri, test_evaluations(history), on_test=True))


def _of_run(
    run: ComparedRun, store_uri: str, evaluations: Sequence[StageRecord], *, on_test: bool
) -> list[StageRecord]:
    def planned(iterations: int) -> set[str]:
        return {node.artifact_id for node in _planned(run, store_uri, iterations, on_test=on_test)}

    return of_the_curve(evaluations, run.iterations, planned)


def of_the_curve(
    evaluations: Sequence[StageRecord], iterations: int, planned: Callable[[int], set[str]]
) -> list[StageRecord]:
    """The evaluations that a run has which is made at once by today's code, however often it was continued.

    Those at ends of earlier calls are left out, and those that other code made beyond the planned
    iterations: the same command only repeats what comes before.

    Args:
        iterations: how many the comparison asks for at first.
        planned: gives the ids of what is planned for a number of iterations.
    """
    known = planned(iterations)
    for end in sorted({each.iteration for each in evaluations if each.iteration > iterations}, reverse=True):
        further = planned(end)
        if any(each.iteration == end and each.manifest.artifact_id in further for each in evaluations):
            known |= further
            break
    return [each for each in evaluations if each.manifest.artifact_id in known]


def read_outcomes(run: ComparedRun, store_uri: str) -> dict[str, list[bool]]:
    """Test task -> whether its greedy attempt succeeded at each point of the run's curve; empty if retention
    removed attempts. Raises StoreError if an artifact is missing or damaged."""
    store = ArtifactStore(store_uri)
    history = read_history(store, RunStore(store_uri).open(run.config.name))
    return outcomes_by_task(store, _of_run(run, store_uri, test_evaluations(history), on_test=True))


def read_held_out_curve(run: ComparedRun, store_uri: str) -> list[CurvePoint]:
    """The learning curve of a run on its held-out tasks. Raises StoreError if an artifact is missing."""
    history = read_history(ArtifactStore(store_uri), RunStore(store_uri).open(run.config.name))
    return learning_curve(history, _of_run(run, store_uri, held_out_evaluations(history), on_test=False))


def read_training(run: ComparedRun, store_uri: str, iterations: int) -> TrainingFigures:
    """What happened in the training of a run. Raises StoreError if an artifact is missing or damaged."""
    store = ArtifactStore(store_uri)
    history = read_history(store, RunStore(store_uri).open(run.config.name))
    return training_figures(store, history, method_columns(run.config), iterations)


def _plan(run: ComparedRun, store_uri: str, iterations: int) -> Plan:
    stored = RunStore(store_uri).open(run.config.name)
    return plan_for(store_uri, stored, run.config, iterations, sources=run.sources)


def _planned(run: ComparedRun, store_uri: str, iterations: int, *, on_test: bool) -> list[PlannedStage]:
    """The stages of a training, and those of its evaluations on test tasks where they are asked for."""
    plan = _plan(run, store_uri, iterations)
    return [*plan.nodes, *(plan_on_test(run.config, run.sources, plan).nodes if on_test else ())]


ByIteration = Mapping[int, float]


@dataclass(frozen=True)
class TrainingFigures:
    """Numbers of one run by iteration: `rewards` by role, `numbers` by the name of a column."""

    rewards: Mapping[str, ByIteration]
    numbers: Mapping[str, ByIteration]


@dataclass(frozen=True)
class Thirds:
    """A number early and late in training: its mean over the first and over the last third of the iterations,
    summarised over seeds. A seed without the number in a third does not count there; None if no seed has
    it."""

    first: SeedSummary | None
    last: SeedSummary | None


def shown_columns(columns: Sequence[Column], history: Sequence[StageRecord]) -> list[Column]:
    """The rollout columns that comparisons of runs show, without sums, which are shown as costs elsewhere."""
    stages = {record.stage for record in of_kind(history, "rollouts")}
    return [each for each in columns if each.stage in stages and each.compare and not each.adds_up]


def training_figures(
    store: ArtifactStore, history: Sequence[StageRecord], columns: Sequence[Column], iterations: int
) -> TrainingFigures:
    """Read the figures from the manifests and the trajectories of the first `iterations`.

    Raises StoreError for trajectories that are damaged or missing.
    """
    rollouts = [record for record in of_kind(history, "rollouts") if record.iteration <= iterations]
    numbers = {
        column.name: {
            record.iteration: value for record in rollouts if (value := record.value(column)) is not None
        }
        for column in shown_columns(columns, history)
    }
    shards = (store.open(shard) for record in rollouts for shard in record.manifest.inputs.values())
    paths = attempt_files(shards)
    return TrainingFigures(mean_rewards(scan_trajectories(paths)), numbers)


def thirds(seeds: Sequence[ByIteration], iterations: int) -> Thirds:
    """A number of several seeds, early and late in training."""
    length = max(1, iterations // 3)
    return Thirds(
        _mean_over(seeds, range(1, length + 1)),
        _mean_over(seeds, range(iterations - length + 1, iterations + 1)),
    )


def _mean_over(seeds: Sequence[ByIteration], iterations: range) -> SeedSummary | None:
    means = []
    for values in seeds:
        inside = [values[each] for each in iterations if each in values]
        if inside:
            means.append(sum(inside) / len(inside))
    return across_seeds(means) if means else None
