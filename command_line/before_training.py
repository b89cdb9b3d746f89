"""What `train` says and checks before it begins: environments that are not qualified, what it reuses, and
code that is not committed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from command_line.output import counted

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.forecast import Forecast
    from erl_pipeline.plan.plan import Plan
    from erl_pipeline.runs.driver import OpenRun
    from storage.artifacts.store import ArtifactStore


def warn_of_qualification(
    store: ArtifactStore,
    config: RunConfig,
    plan: Plan,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Warn if the environment of a plan is not qualified in this store. One that comes with the program, and
    failed no examination, is only worth a note."""
    from erl_pipeline.runs.environment_checks import find_qualification, state_of_qualification, tasks_of_plan

    tasks = tasks_of_plan(plan)
    if tasks is None:
        return
    qualified, sentence = state_of_qualification(store, tasks)
    if qualified:
        return
    if has_users_code(config) or find_qualification(store, tasks) is not None:
        warn(f"{sentence}; `erl-pipeline env qualify CONFIG` examines it")
    else:
        note(
            f"Environment {config.environment.type} comes with erl-pipeline and was not examined with these "
            "settings; `erl-pipeline env qualify CONFIG` does so"
        )


def has_users_code(config: RunConfig) -> bool:
    """Whether the environment, one of its parts or its scorer is a plug-in of another package than this."""
    from erl_pipeline.config.plugins import plugins

    others = {
        package
        for found in (plugins("environments").found, plugins("scorers").found)
        for plugin in found.values()
        if not plugin.is_own
        for package in plugin.packages
    }
    environments = plugins("environments")
    parts = environments[config.environment.type].value.parts(config.environment).values()
    return any(
        not others.isdisjoint(environments[each.type].packages_for(each))
        for each in (config.environment, *(part.settings for part in parts))
    )


_STAGES = 4


def reuse_lines(opened: OpenRun, plan: Plan) -> list[str]:
    """Lines about what is reused from other runs, and about artifacts of the run that are computed again.

    If the run only continues there are no lines, and the store is not searched.
    """
    recorded = opened.recorded
    if all(recorded[node.place] == node.artifact_id for node in plan.nodes if node.place in recorded) and any(
        node.place in recorded for node in plan.nodes
    ):
        return []
    from erl_pipeline.plan.forecast import forecast
    from erl_pipeline.runs.store_lookups import StoreLookups

    lookups = StoreLookups(opened.store.uri, opened.config.model_dump(mode="json"), others=False)
    found = forecast(plan, lookups)
    return [*reused_from(found, opened.run.name), *computed_again(found)]


def reused_from(found: Forecast, own: str) -> list[str]:
    """A line for each other run whose artifacts are reused."""
    stages: dict[str, list[str]] = {}
    for stage in found.reused:
        if stage.run != own:
            stages.setdefault(stage.run, []).append(stage.node.stage.shown_as)
    return [
        f"Reused: {counted(len(names), 'artifact')} of run {run} ({_listed(names)})"
        for run, names in stages.items()
    ]


def computed_again(found: Forecast) -> list[str]:
    """A line for each reason why stages that the run has are computed again."""
    iterations: dict[str, list[int]] = {}
    for stage in found.computed:
        if stage.compared:
            for reason in stage.reasons:
                if not reason.maker:
                    iterations.setdefault(reason.words, []).append(stage.node.iteration or 0)
    last = max((stage.node.iteration or 0 for stage in found.computed if stage.compared), default=0)
    return [
        f"{words[:1].upper()}{words[1:]}: {_span(min(numbers), last)} computed again"
        for words, numbers in iterations.items()
    ]


def _span(first: int, last: int) -> str:
    if last == 0:
        return "what comes before the first iteration is"
    if first == 0:
        return f"everything through iteration {last} is"
    return f"iteration {last} is" if first == last else f"iterations {first} to {last} are"


def _listed(names: Sequence[str]) -> str:
    different = list(dict.fromkeys(names))
    return ", ".join(different[:_STAGES]) + (", ..." if len(different) > _STAGES else "")


def uncommitted_code(config: RunConfig) -> list[str]:
    """A sentence for the program and for each plug-in of a run whose git checkout has changes."""
    from erl_pipeline.config.plugins import plugins
    from erl_pipeline.plan.sources import environment_packages
    from storage.artifacts.manifest import code_version

    found = []
    if code_version().endswith("-dirty"):
        found.append("the code of erl-pipeline has changes that are not committed")
    method = plugins("methods")[config.method.type]
    engine, trainer = plugins("engines")[config.engine.type], plugins("trainers")[config.trainer.type]
    packages = (*environment_packages(config), *method.packages, *engine.packages, *trainer.packages)
    foreign = [each for each in packages if not each.startswith("erl_pipeline.")]
    changed = [each for each in foreign if _has_changes(each)]
    return found + [f"package {package} has changes that are not committed" for package in changed]


def _has_changes(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return False
    origin = Path(spec.origin)
    place = origin if spec.submodule_search_locations is None else origin.parent
    try:
        done = subprocess.run(
            ["git", "-C", str(origin.parent), "status", "--porcelain", "--", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())
