"""Runs that begin from something else than their configuration: from another run, whose artifacts are then
entered in their ledger before their own work, or from trajectories of a file."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.planning import (
    beginning_of,
    begun_by,
    plan_before_branch,
    plan_of_beginning,
    stored_rollouts,
)
from erl_pipeline.runs.run_plans import shared_stages
from erl_pipeline.runs.state import place_of
from erl_pipeline.stages.names import HELD_OUT, TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import count_rollouts, gain_metrics, graded_rewards, success_rates
from erl_pipeline.stages.rollouts.generate_rollouts import GENERATE_ROLLOUTS
from erl_pipeline.stages.tasks.held_out import KeptApart, refuse_held_out_rows
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Told
from storage.errors import ConfigError, InputError, store_errors
from storage.filesystem import sha256_file
from storage.memory.versions import FORGET_STAGE
from storage.runs.documents import IMPORTED, BranchOrigin, OfflineOrigin, read_origin, write_origin
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore
from storage.tables.trajectories import Trajectory, scan_trajectories, write_trajectories
from storage.tables.trajectory_import import check_trajectories, read_checked
from storage.texts import REPLACED_TEXTS


def begin_branch(opened: OpenRun, origin: BranchOrigin) -> None:
    """Make a new run a branch of another, and enter in its ledger what they share; `train` then goes on.

    Later requests to forget take effect with the first memory that the branch makes itself.

    Raises ConfigError for a run that already began in another way, and InputError when the other run lacks
    something before the branch.
    """
    source = RunStore(opened.store.uri).open(origin.run)
    plan = plan_before_branch(
        opened.store.uri,
        source,
        origin,
        sources=unread_sources(run_config(source)),
        taken=opened.entries(),
    )
    _establish(opened, origin)
    shared = shared_stages(plan, origin.iteration, origin.stage)
    opened.share(lines_in_branch(source.stages(), shared, origin.iteration))


def lines_in_branch(
    entries: Iterable[LedgerEntry], shared: Sequence[PlannedStage], iteration: int
) -> list[LedgerEntry]:
    """The lines of a run's ledger that a branch of it takes over, in their order: what is shared, and the
    requests to forget. None of these takes effect later than with the first memory that the branch makes
    itself.
    """
    places, lines = {node.place for node in shared}, list(entries)
    makes = any(
        entry.kind == "memory" and entry.stage != FORGET_STAGE and place_of(entry) not in places
        for entry in lines
        if entry.iteration == iteration
    )
    remembers = any(node.stage.output == "memory" and node.iteration == iteration for node in shared)
    own_memory = iteration + 1 if remembers and not makes else iteration
    return [
        entry.model_copy(update={"iteration": min(entry.iteration or 0, own_memory)})
        if entry.kind == "request"
        else entry
        for entry in lines
        if entry.kind == "request" or place_of(entry) in places
    ]


def begin_offline(opened: OpenRun, origin: OfflineOrigin) -> None:
    """Make a new run train on another run's stored rollouts, and enter these in its ledger.

    Raises ConfigError for a run that already began in another way and for settings that `require_offline`
    refuses; InputError when the other run lacks rollouts that are asked for, or one of their tasks is held
    out or of the test split.
    """
    require_offline(opened.config)
    source = RunStore(opened.store.uri).open(origin.run)
    _refuse_held_out(opened, source, stored_rollouts(source, origin, opened.entries()))
    _establish(opened, origin)
    first, last = origin.first_iteration, origin.last_iteration
    shared: list[LedgerEntry] = []
    plan, begun = plan_of_beginning(opened.store.uri, source), begun_by(opened.store.uri, source)
    if plan is not None and begun is not None:
        beginning = {node.place for node in plan.nodes if node.stage.output != "evaluation"}
        shared += [entry for entry in begun.stages() if place_of(entry) in beginning]
    for entry in source.stages():
        if entry.kind in ("trajectories", "rollouts") and first <= (entry.iteration or 0) <= last:
            shared.append(entry.model_copy(update={"iteration": (entry.iteration or 0) - first + 1}))
    opened.share(shared)


def _refuse_held_out(opened: OpenRun, source: Run, rollouts: Mapping[int, str]) -> None:
    """Raise InputError, which names the row, if a stored trajectory is of a held-out or a test task."""
    config, store = opened.config, opened.store
    beginning = beginning_of(store.uri, source, opened.entries())
    held_out = None
    if beginning is not None:
        lines = store.open(beginning.tasks).path(HELD_OUT).read_text(encoding="utf-8").splitlines()
        held_out = [Task(**json.loads(line)) for line in lines]
    kept = kept_apart(config, held_out)
    for iteration, rollouts_id in rollouts.items():
        shards = store.open(rollouts_id).manifest.inputs.values()
        # What retention keeps of pruned rows is enough.
        rows = scan_trajectories([store.open(shard).rows_path(TRAJECTORIES) for shard in sorted(shards)])
        refuse_held_out_rows(rows, kept, f"run {source.name}, iteration {iteration}")


def kept_apart(config: RunConfig, held_out: Sequence[Task] | None = None) -> KeptApart:
    """What a run may not train on; `held_out`: its held-out tasks, by default those of its configuration."""
    plugin = plugins("environments")[config.environment.type].value
    if held_out is None:
        held_out = plugin.held_out_tasks(config.environment, config.seed, config.evaluation.tasks)
    return KeptApart(plugin, config.environment, config.seed, held_out)


def offline_settings(config: RunConfig, own: Sequence[str] = ()) -> list[str]:
    """The settings that a configuration lacks for training on stored rollouts, unless `own` settings say
    otherwise: the importance correction, and evaluations by the embedded engine."""
    needed = []
    if not any(key.startswith("engine") for key in own) and config.engine.type != "transformers":
        needed.append("engine={type: transformers}")
    chosen = any(key.startswith(("objective.correction", "objective=")) for key in own)
    if config.objective.correction.type == "bypass" and not chosen:
        needed.append("objective.correction={type: decoupled}")
    return needed


def require_offline(config: RunConfig) -> None:
    """Raise ConfigError if the method trains nothing, if the objective assumes that the policy at hand
    generated the data, or if `pipeline.too_old` is `wait`: stored data does not get younger."""
    if not plugins("methods")[config.method.type].value.trains:
        raise ConfigError(
            f"method.type: {config.method.type} changes no weights, and learns nothing from stored rollouts "
            "or served conversations; use another method, such as rlvr"
        )
    if not isinstance(config.objective.correction, DecoupledCorrection):
        raise ConfigError(
            "objective.correction.type: bypass cannot be trained offline: it computes the ratio against the "
            "policy that sampled, so that on old data most tokens are outside the clip range from the first "
            "step and are silently left out; use decoupled, which weights each token by how likely it is "
            "under the current policy"
        )
    if config.pipeline.max_age is not None and config.pipeline.too_old == "wait":
        raise ConfigError(
            f"pipeline.too_old: wait; allowed offline with pipeline.max_age: {config.pipeline.max_age} is "
            "drop, since stored rollouts do not get younger by waiting"
        )
    how = config.self_distillation
    if how is not None and (how.hindsight, how.demonstration.source) == ("demonstration", "own_success"):
        raise ConfigError(
            "self_distillation.demonstration.source: own_success is not looked for in stored rollouts, so "
            "that offline nothing would be taught; use solution, or another hindsight"
        )


def _establish(opened: OpenRun, origin: BranchOrigin | OfflineOrigin) -> None:
    """Record what a new run began from; nothing changes for a run that has this origin already."""
    found = read_origin(opened.store.uri, opened.run.name)
    if found == origin:
        return
    if found is not None or opened.entries():
        begun = "by itself" if found is None else found.describe()
        raise ConfigError(
            f"run {opened.run.name} exists and was begun {begun}, not {origin.describe()}. "
            "Give the new run another --name."
        )
    write_origin(opened.store.uri, opened.run.name, origin)


IMPORT_STAGE = "import_trajectories"


@dataclass(frozen=True)
class ImportedIteration:
    """The rollouts of one iteration of a file. `reused` says that they were in the store already, and
    `replaced_texts` in how many texts halves of characters were replaced."""

    iteration: int
    rows: int
    trajectories_id: str
    rollouts_id: str
    reused: bool
    replaced_texts: int


def import_trajectories(store_uri: str, path: Path, name: str) -> list[ImportedIteration]:
    """Check a file (see `check_trajectories`) and commit its rows as the rollouts of a new run.

    Each iteration becomes one artifact of stage `import_trajectories`, listed by one of `generate_rollouts`
    as shards are. Importing the same file again continues where the last import stopped.

    Raises:
        InputError: the file is wrong, or the name is taken by something else.
        RunBusy: another process is working on the run.
        StoreError: the store cannot be written.
    """
    rows = check_trajectories(path)
    with store_errors("read", path):
        digest = sha256_file(path)
    settings = {IMPORTED: {"file": path.name, "sha256": digest, "rows": rows}}
    run = open_import(store_uri, name, settings)
    with run.lock():
        store = ArtifactStore(store_uri)
        return [
            _import_iteration(store, run, iteration, list(members), {"file_sha256": digest})
            for iteration, members in groupby(read_checked(path), key=lambda read: read[0].iteration)
        ]


def open_import(store_uri: str, name: str, settings: Mapping[str, Any]) -> Run:
    """The run that holds what comes from outside, made if it is not there. `settings` has, under `IMPORTED`,
    the file's name and digest and all that its rows depend on, or the run that `served`.

    Raises InputError for a name that is taken by something else, or that no run can have.
    """
    runs = RunStore(store_uri)
    if name not in runs.list():
        try:
            return runs.create(name, settings)
        except InputError:
            if name not in runs.list():
                raise
    run = runs.open(name)
    before, now = run.config.get(IMPORTED), settings[IMPORTED]
    if before is None or {**before, "file": ""} != {**now, "file": ""}:
        if before is None:
            held = "was not imported"
        elif "served" in before:
            held = f"holds the traffic of run {before['served']}"
        elif before["sha256"] == now.get("sha256"):
            held = "was imported with other options"
        else:
            held = f"holds what was imported from another file, {before['file']}"
        raise InputError(f"run {name} exists and {held}; choose another --name")
    return run


def _import_iteration(
    store: ArtifactStore,
    run: Run,
    iteration: int,
    read: Sequence[tuple[Trajectory, int]],
    settings: Mapping[str, Any],
) -> ImportedIteration:
    rows, replaced = [row for row, _ in read], sum(count for _, count in read)
    found = {REPLACED_TEXTS: replaced} if replaced else {}

    def write(folder: Path) -> Told:
        written = write_trajectories(folder / TRAJECTORIES, rows)
        return {"counters": {"trajectories": len(rows), **found}, "rows": {TRAJECTORIES: written}}

    recipe = Recipe(IMPORT_STAGE, 1, {**settings, "iteration": iteration}, {}, 0, kind="trajectories")
    committed = commit_rollouts(
        store, run, recipe, iteration, write, lambda _: {**count_rollouts(rows), **found}
    )
    return ImportedIteration(
        iteration,
        len(rows),
        committed.trajectories.artifact_id,
        committed.rollouts.artifact_id,
        committed.reused,
        replaced,
    )


@dataclass(frozen=True)
class CommittedRollouts:
    """Trajectories from outside, and the artifact that lists them as an iteration's rollouts. `reused` says
    that the trajectories were in the store already."""

    trajectories: Manifest
    rollouts: Manifest
    reused: bool


def commit_rollouts(
    store: ArtifactStore,
    run: Run,
    recipe: Recipe,
    iteration: int,
    write: Callable[[Path], Told],
    count: Callable[[Manifest], Mapping[str, int | float]],
) -> CommittedRollouts:
    """Commit trajectories from outside as the rollouts of an iteration; what is there is not written again.
    The run has to be locked.

    Args:
        recipe: of the trajectories.
        write: writes them into a folder and says what the manifest is to say.
        count: the counters of the rollouts, from the manifest of the trajectories; see `count_rollouts`.
    """
    trajectories, reused = commit_once(store, run, recipe, iteration, write)

    def listed(_: Path) -> Told:
        counters = {name: int(number) for name, number in count(trajectories).items()}
        written = scan_trajectories([store.open(trajectories.artifact_id).path(TRAJECTORIES)])
        metrics = {**success_rates(counters), **graded_rewards(written), **gain_metrics(written)}
        return {"counters": counters, "metrics": metrics}

    inputs = {"shard-0000": trajectories.artifact_id}
    listing = Recipe(GENERATE_ROLLOUTS.name, 1, {}, inputs, 0, kind="rollouts")
    rollouts, _ = commit_once(store, run, listing, iteration, listed)
    return CommittedRollouts(trajectories, rollouts, reused)


def commit_once(
    store: ArtifactStore, run: Run, recipe: Recipe, iteration: int | None, write: Callable[[Path], Told]
) -> tuple[Manifest, bool]:
    """The artifact of a recipe, written if it is missing, and whether it was there already. The run's ledger
    names it once. `write` puts files into a folder and says what the manifest is to say."""
    manifest = store.find(recipe.artifact_id, recipe.stage)
    reused = manifest is not None
    if manifest is None:
        with store.create(recipe, run=run.name, iteration=iteration) as staging:
            manifest = staging.commit(**write(staging.path)).manifest
    known = {(entry.iteration, entry.artifact_id) for entry in run.stages()}
    if (iteration, manifest.artifact_id) not in known:
        seconds = (manifest.finished_at - manifest.started_at).total_seconds()
        run.record(
            iteration, recipe.stage, manifest.artifact_id, kind=recipe.kind, reused=reused, seconds=seconds
        )
    return manifest, reused
