"""Training a run in the foreground, what is said about it before, and the table and commands at its end."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from command_line.foreground import work_on_run
from command_line.output import command, counted, print_json, print_line, print_table
from command_line.stored_run import find_finished_run, run_folder
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.iterations import stored_rows
from erl_pipeline.plan.forecast import Forecast, forecast
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.sources import environment_packages
from erl_pipeline.runs.config import keep_settings, method_columns, run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.environment_checks import find_qualification, state_of_qualification, tasks_of_plan
from erl_pipeline.runs.retention import retain_run
from erl_pipeline.runs.state import completed_iterations, latest_checkpoint, renew_report
from erl_pipeline.runs.store_lookups import StoreLookups
from erl_pipeline.runs.train import train as train_opened
from erl_pipeline.views.report.tables import MOST_ROWS, iteration_table
from storage.artifacts.manifest import code_version, git_output
from storage.artifacts.store import ArtifactStore
from storage.errors import RunBusy, StoreError, disk_errors
from storage.lineage.graph import current_entries
from storage.runs.run import Run, RunStore
from storage.upkeep.verification import mend_run


def train_until(config: RunConfig, store: str, target: int, check: bool, json: bool) -> None:
    """Train a run until iteration `target`, unless it is finished, and print its results. With `check` all
    its artifacts are checked first, and damaged ones made again."""
    for damage in (
        mend_run(ArtifactStore(store), config.name, config.model_dump(mode="json")) if check else ()
    ):
        print(f"Made again: {damage}", file=sys.stderr)
    finished = None if check else find_finished_run(config, store, target)
    if finished is not None:
        print(
            f"Run {finished.name} is finished: it has {counted(target, 'iteration')}, all committed.",
            file=sys.stderr,
        )
        # A kill may have come between the last artifact and the end of retention.
        with suppress(RunBusy), disk_errors(store):  # Then its driver applies its own rules.
            try:
                keep_settings(finished, config)
            except StoreError as error:  # A store that one may only read shows its results all the same.
                print(f"The settings that may change are not stored: {error}", file=sys.stderr)
            else:
                retain_run(ArtifactStore(store), finished)
    else:
        _work(config, store, target, check)
    _conclude(finished or RunStore(store).open(config.name), store, target, finished is None, json)


def _work(config: RunConfig, store: str, target: int, check: bool) -> None:
    """Train with a progress display until the target. Raises typer.Exit when a signal stopped the work."""

    def work(opened: OpenRun, note: Callable[[str], None]) -> None:
        def notify(plan: Plan) -> None:
            for line in reuse_lines(opened, plan):
                note(line)
            for line in uncommitted_code(opened.config):
                opened.listener.warn(line)
            warn_of_qualification(opened.store, opened.config, plan, note, opened.listener.warn)

        train_opened(opened, target, check=check, notify=notify)

    work_on_run(config, store, target, work, lambda: _kept(config, store))


def _kept(config: RunConfig, store: str) -> str:
    entries = RunStore(store).open(config.name).stages()
    return (
        f"Stopped. Run {config.name} is kept through iteration {completed_iterations(config, entries)}, "
        f"{counted(len(entries), 'artifact')} in all; continue with: {command(sys.argv[1:])}"
    )


def _conclude(run: Run, store: str, target: int, worked: bool, json: bool) -> None:
    """Print the newest iterations, write the report of a run that is not long, and name the commands to try
    next."""
    artifacts = ArtifactStore(store)
    entries = current_entries(artifacts, run.recorded())
    config = run_config(run)
    checkpoint = latest_checkpoint(config, entries)
    assert checkpoint is not None
    newest = checkpoint.iteration or 0
    columns = method_columns(config)
    shown = [entry for entry in entries if newest - (entry.iteration or 0) < MOST_ROWS]
    rows = stored_rows(artifacts, shown, columns)
    report = _report(artifacts, run, newest, worked)
    if json:
        print_json(
            {
                "run": run.name,
                "store": store,
                "iterations": target,
                "worked": worked,
                "checkpoint": checkpoint.artifact_id,
                "report": report and str(report),
                "rows": [row.plain(columns) for row in rows],
            }
        )
        return
    table = iteration_table(rows, columns)
    print_table(table.cells)
    if newest >= MOST_ROWS:
        print_line(f"The newest {counted(MOST_ROWS, 'iteration')}; `status` shows all.")
    print_line(table.legend + "\n")
    tries = [
        ["status", run.name],
        ["evaluate", run.name, "--tasks", "generated"],
        *([["memory", "list", run.name]] if any(entry.kind == "memory" for entry in entries) else []),
        ["lineage", "show", run.name, checkpoint.artifact_id[:12]],
    ]
    if report is None:
        tries.append(["report", run.name])
    else:
        print_line(f"Report: {report}")
    print_line("Try next:")
    for words in tries:
        print_line("  " + command(words, store))
    print_line("  " + command([*_without("--iterations", sys.argv[1:]), "--iterations", str(target + 10)]))


def _without(option: str, words: Sequence[str]) -> list[str]:
    """A command line without an option that has a value."""
    return [
        word
        for place, word in enumerate(words)
        if word != option and not word.startswith(f"{option}=") and words[max(0, place - 1)] != option
    ]


def _report(artifacts: ArtifactStore, run: Run, newest: int, worked: bool) -> Path | None:
    """The run's report, renewed if anything was trained or it is missing; None for a run that is too long."""
    report = run_folder(artifacts.uri, run.name) / "report.html"
    return report if report.exists() and not worked else renew_report(artifacts, run, newest, report)


def warn_of_qualification(
    store: ArtifactStore,
    config: RunConfig,
    plan: Plan,
    note: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Warn if the environment of a plan is not qualified in this store. One that comes with the program, and
    failed no examination, is only worth a note."""
    tasks = tasks_of_plan(plan)
    if tasks is None or plugins("environments")[config.environment.type].value.has_agents(config.environment):
        return
    qualified, sentence = state_of_qualification(store, tasks)
    if qualified:
        return
    if has_users_code(config) or find_qualification(store, tasks) is not None:
        warn(f"{sentence}; `erl-pipeline env qualify CONFIG` examines it")
    else:
        note(
            f"Environment {config.environment.type} comes with erl-pipeline, so nothing has to be done. To "
            "check its tasks and rewards with your settings: `erl-pipeline env qualify CONFIG`"
        )


def has_users_code(config: RunConfig) -> bool:
    """Whether the environment, one of its parts or its scorer is a plug-in of another package than this."""
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
    return bool(git_output(origin.parent, "status", "--porcelain", "--", str(place)))
