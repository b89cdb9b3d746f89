"""The test tasks of a comparison, and what readers are told when others had opened them before."""

from collections.abc import Sequence
from typing import Any

from erl_pipeline.comparison.design import ComparedRun, Design
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.on_request import plan_on_test
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.evaluation.evaluate import TEST_TASKS
from storage.artifacts.recipe import digest
from storage.runs.split_openings import Opening, SplitUse
from storage.texts import counted

_NOT_LEARNING = {"name", "seed", "runner", "resources", "store", "retention", "warnings", "metrics"}
"""Settings on which no result depends, and the seed."""
_ANY_SEED = 0


def split_use(design: Design) -> SplitUse:
    """A comparison as it opens its test tasks: before a search has chosen settings.

    Single tasks are told apart by the key of their problem, as they are with one seed, whatever the seeds of
    the comparison: with another hidden world, or another limit of steps, the same boards are the same split.
    So are turned and mirrored ones.
    """
    of_arm = {run.arm: run for run in reversed(design.runs)}
    arms = {
        name: {
            "iterations": run.iterations,
            "settings": run.config.model_dump(mode="json", exclude=_NOT_LEARNING),
            "trials": [list(trial.settings) for trial in design.trials if trial.arm == name],
        }
        for name, run in of_arm.items()
    }
    search = None if design.search is None else design.search.model_dump(mode="json")
    first = design.runs[0]
    plugin = plugins("environments")[first.config.environment.type].value
    tasks = plugin.splits.test_tasks(first.config.environment, _ANY_SEED)
    artifacts: dict[str, None] = {}
    for run in design.runs:
        if run.arm == first.arm:
            plan = plan_on_test(run.config, run.sources, plan_run(run.config, run.sources, iterations=0))
            artifacts[plan.by_place[StageKey(0, TEST_TASKS.name, "")].artifact_id] = None
    shape_of = {digest(_problem(task))[:16]: digest(_shape(task))[:16] for task in tasks}
    return SplitUse(
        comparison=design.name,
        settings_digest=digest({"arms": arms, "search": search}),
        seeds=design.seeds,
        test_tasks=tuple(artifacts),
        tasks=tuple(sorted(shape_of)),
        shapes=tuple(shape for _, shape in sorted(shape_of.items())),
        code_digest=digest({name: _code(run) for name, run in of_arm.items()}),
        baseline=design.baseline,
    )


def _code(run: ComparedRun) -> dict[str, Any]:
    """Stage -> its version, and the fingerprints of the code that its artifacts name."""
    plan = plan_run(run.config, run.sources, iterations=run.iterations)
    tested = plan_on_test(run.config, run.sources, plan)
    recipes = [node.recipe for node in (*plan.nodes, *tested.nodes)]
    return {each.stage: [each.stage_version, dict(each.code)] for each in recipes}


def _problem(task: Task) -> list[str]:
    splits = plugins("environments")[task.environment].value.splits
    return [task.environment, splits.task_key(task.payload)]


def _shape(task: Task) -> list[str]:
    """Its problem; turned and mirrored ones are the same."""
    twin_key = plugins("environments")[task.environment].value.splits.twin_key
    return _problem(task) if twin_key is None else [task.environment, twin_key(task.payload)]


def opened_sentence(before: Sequence[Opening], use: SplitUse) -> str:
    """What readers of a result on test tasks are told that had been opened before; empty if nobody had."""
    others = [each for each in before if each.settings_digest != use.settings_digest]
    own = [each for each in before if each.settings_digest == use.settings_digest]
    with_other_baseline = [each for each in own if each.baseline not in ("", use.baseline)]
    own = [each for each in own if each not in with_other_baseline]
    with_other_code = [each for each in own if set(each.seeds) == set(use.seeds)]
    with_other_seeds = [each for each in own if set(each.seeds) != set(use.seeds)]
    said = []
    if others:
        seen = use.seen_in(others)
        if any(set(use.test_tasks) & set(each.test_tasks) for each in others):
            seen = set(use.tasks)  # An earlier version named single tasks otherwise.
        who = "; ".join(f"{each.comparison}, {_when(each)}" for each in others)
        said.append(
            f"This test split was opened before: {counted(len(others), 'other comparison')} had seen "
            f"{len(seen)} of its {counted(len(use.tasks), 'task')}, as they are or turned ({who}). Settings "
            "may have been chosen after a look at them."
        )
    if with_other_code:
        said.append(
            f"This comparison had been made with other code before "
            f"({'; '.join(map(_when, with_other_code))}). The code may have been changed after a look at its "
            "results."
        )
    if with_other_baseline:
        who = "; ".join(f"{each.baseline}, {_when(each)}" for each in with_other_baseline)
        said.append(
            f"This comparison had been made with another baseline before ({who}). The baseline may have been "
            "chosen after a look at its results, and p values are corrected for the differences from this "
            "one alone."
        )
    if with_other_seeds:
        who = "; ".join(
            f"seeds {', '.join(map(str, each.seeds))}, {_when(each)}" for each in with_other_seeds
        )
        said.append(
            f"This comparison had been made with other seeds before ({who}). Seeds may have been added or "
            "left out after a look at its results."
        )
    return " ".join(said)


def _when(opening: Opening) -> str:
    return f"{opening.opened:%Y-%m-%d %H:%M} UTC, code {opening.code_version}"
