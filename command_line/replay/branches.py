"""`erl-pipeline replay`: trains another run from a stored one: a branch of it, or offline on its rollouts."""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from command_line.foreground import work_on_run
from command_line.output import command, counted, print_json, print_line, print_table
from command_line.selectors import find_checkpoint
from command_line.stored_run import own_settings, planned_branch, require_other_name, run_folder
from erl_pipeline.config.loading import change_config, load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import changed_settings
from erl_pipeline.evaluation.history import of_stage, read_history
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.plan.forecast import own_differences
from erl_pipeline.plan.runner import InProcessConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.config import method_columns, run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.origins import begin_branch, begin_offline, offline_settings, require_offline
from erl_pipeline.runs.planning import stored_rollouts
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.runs.state import current_checkpoint, write_run_report
from erl_pipeline.runs.train import train
from erl_pipeline.stages.training.measure_staleness import MEASURE_STALENESS
from erl_pipeline.views.report.tables import iteration_table
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError
from storage.runs.documents import IMPORTED, BranchOrigin, OfflineOrigin, read_origin
from storage.runs.run import Run, RunStore


def work_on_new_run(
    config: RunConfig, store: str, notes: Sequence[str], begin: Callable[[OpenRun], None]
) -> None:
    """Train the new run in this process, with the progress display of `train`.

    Args:
        begin: records the artifacts that the run shares in its ledger.
    """
    for note in notes:
        print(note, file=sys.stderr)

    def work(opened: OpenRun, _note: Callable[[str], None]) -> None:

        begin(opened)
        # Only for this process: the stored configuration keeps its runner, for later continuation.
        opened.config = opened.config.model_copy(update={"runner": InProcessConfig()})
        train(opened, config.iterations)

    kept = f"Stopped. What was committed is kept; continue with: {command(sys.argv[1:])}"
    work_on_run(config, store, config.iterations, work, lambda: kept)


def conclude(name: str, source: str, store: str, last: int, json: bool) -> None:
    """Print the new run iteration by iteration, write its report, and name the command to try next."""
    artifacts = ArtifactStore(store)
    run = RunStore(store).open(name)
    origin = read_origin(store, name)
    assert origin is not None
    history = read_history(artifacts, run)
    config = run_config(run)
    columns = method_columns(config)
    rows = history_rows(history, columns)
    report = write_run_report(artifacts, run, run_folder(store, name) / "report.html")
    checkpoint = current_checkpoint(artifacts, run, config)
    assert checkpoint is not None
    reused = Counter("shared" if record.reused else "computed" for record in history)
    staleness = [
        {"iteration": record.iteration, **record.manifest.counters, **record.manifest.metrics}
        for record in of_stage(history, MEASURE_STALENESS.name)
    ]
    if json:
        print_json(
            {
                "run": name,
                "store": store,
                "origin": origin.model_dump(),
                "iterations": last,
                "shared": reused["shared"],
                "computed": reused["computed"],
                "checkpoint": checkpoint.artifact_id,
                "report": str(report),
                "rows": [row.plain(columns) for row in rows],
                "staleness": staleness,
            }
        )
        return
    if isinstance(origin, BranchOrigin):
        rows = [row for row in rows if row.iteration >= origin.iteration]
        if origin.iteration > 1:
            print_line(
                f"Iterations before {origin.iteration} are those of {source}; `status {name}` shows all."
            )
    table = iteration_table(rows, columns)
    print_table(table.cells)
    print_line(table.legend)
    if isinstance(origin, OfflineOrigin):
        print_line("Numbers of rollouts are those of the stored ones; no rollout was generated again")
        print_line()
        print_table([_staleness_cells(row) for row in staleness])
        print_line(_STALENESS_LEGEND)
    print_line()
    print_line(
        f"Run {name}, begun {origin.describe()}: {counted(reused['shared'], 'artifact')} shared, "
        f"{reused['computed']} computed"
    )
    print_line(f"Report: {report}")
    print_line("Try next:")
    print_line("  " + command(["diff", source, name], store))


_STALENESS_LEGEND = (
    "age: policy versions between sampler and policy, by lineage; ESS: effective sample size, as a share\n"
    "of the number of samples, with raw and with capped weights; capped: share above the cap;\n"
    "KL: sampler to policy, nats a token"
)


def _staleness_cells(numbers: dict[str, Any]) -> dict[str, str]:
    age = numbers.get("age_mean")
    return {
        "iter": str(numbers["iteration"]),
        "rows": f"{numbers['trajectories']:,}",
        "tokens": f"{numbers['trained_tokens']:,}",
        "age": "unknown" if age is None else f"{age:.1f}",
        "oldest": str(numbers.get("age_max", "")),
        "ESS": f"{numbers['effective_sample_size']:.3f}",
        "ESS capped": f"{numbers['effective_sample_size_capped']:.3f}",
        "capped": f"{numbers['capped']:.4f}",
        "mean weight": f"{numbers['weight_mean']:.3f}",
        "KL": f"{numbers['behaviour_kl']:.4f}",
    }


def replay_branch(
    run: str,
    iteration: int,
    stage: str,
    last: int | None,
    settings: Sequence[str],
    name: str,
    store: str,
    json: bool,
) -> None:
    """Begin the branch, or continue it. Raises what `planned_branch` raises, and ConfigError if another run
    has the name."""
    require_other_name(run, name)
    branch = planned_branch(run, store, iteration, stage, last, settings, name)
    heading = f"Branch of {run}: shares {branch.describe_shared()}"
    notes = [heading, *(f"  {line}" for line in branch.changed)]
    work_on_new_run(branch.config, store, notes, partial(begin_branch, origin=branch.origin))
    conclude(name, run, store, branch.config.iterations, json)


_EXAMPLES = 3


def replay_offline(
    run: str,
    span: tuple[int, int],
    name: str,
    settings: Sequence[str],
    checkpoint: str | None,
    evaluates: bool,
    config_file: Path | None,
    store: str,
    json: bool,
) -> None:
    """Train on the stored iterations of `span` (first and last) in order, or continue that training.

    Raises ConfigError for changed settings that the stored rollouts depend on, or for an objective without
    importance correction; InputError when `run` lacks one of the iterations.
    """
    stored = RunStore(store).open(run)
    require_other_name(run, name)
    checkpoint_id = None
    if checkpoint is not None:
        checkpoint_id = find_checkpoint(ArtifactStore(store), stored, checkpoint).artifact_id
    origin = OfflineOrigin(
        run=run,
        first_iteration=span[0],
        last_iteration=span[1],
        checkpoint_id=checkpoint_id,
        evaluates=evaluates,
    )
    stored_rollouts(stored, origin)
    base, new = _offline_config(stored, origin.iterations, name, settings, config_file)
    require_offline(new)
    heading = f"Offline: stored rollouts of iterations {span[0]} to {span[1]} of {run}, in order"
    notes = [heading, *(f"  {line}" for line in changed_settings(base, new))]
    work_on_new_run(new, store, notes, partial(begin_offline, origin=origin))
    conclude(new.name, run, store, origin.iterations, json)


def _offline_config(
    stored: Run, iterations: int, name: str, settings: Sequence[str], config_file: Path | None
) -> tuple[RunConfig, RunConfig]:
    """The configuration of the stored run (or of the file), and that of offline training on it.

    The importance correction is switched on and evaluation uses the embedded engine, unless `settings` say
    otherwise.
    """
    own = own_settings(settings)
    imported = IMPORTED in stored.config
    if imported and config_file is None:
        raise InputError(
            f"run {stored.name} has trajectories and no policy of its own; name one with --config CONFIG"
        )
    if not imported and config_file is not None:
        raise InputError(f"run {stored.name} has a configuration of its own; change it with --set")
    base = run_config(stored) if config_file is None else load_config(config_file)
    needed = offline_settings(base, own)
    options = {"--name": ("name", name), "--iterations": ("iterations", iterations)}
    adapted = change_config(base, needed, options)
    new = change_config(adapted, own, options)
    if not imported:
        _refuse_other_data(adapted, new)
    return base, new


def _refuse_other_data(old: RunConfig, new: RunConfig) -> None:
    """Raise ConfigError for changed settings on which the stored rollouts, or what precedes them, depend."""
    before, after = (plan_run(config, unread_sources(config), iterations=1) for config in (old, new))
    changed = changed_settings(old, new)
    for node in before.nodes:
        if node.iteration is not None and node.stage.output not in ("trajectories", "rollouts"):
            continue
        found = after.by_place.get(node.place)
        reasons = changed if found is None else own_differences(node.recipe, found.recipe, changed)
        if reasons:
            raise ConfigError(
                f"the settings change {node.stage.name}, on which the stored rollouts depend "
                f"({'; '.join(reasons[:_EXAMPLES])}); change only how the policy learns from them"
            )
