"""Importing trajectories from elsewhere, as the rollouts of a run that offline training can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import count_rollouts, gain_metrics, graded_rewards, success_rates
from erl_pipeline.stages.rollouts.generate_rollouts import GENERATE_ROLLOUTS
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, store_errors
from storage.filesystem import sha256_file
from storage.runs.documents import IMPORTED
from storage.runs.run import Run, RunStore
from storage.tables.trajectories import Trajectory, scan_trajectories, write_trajectories
from storage.tables.trajectory_import import check_trajectories, read_checked
from storage.texts import REPLACED_TEXTS

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
    run = _open_run(store_uri, name, settings)
    with run.lock():
        store = ArtifactStore(store_uri)
        return [
            _import_iteration(store, run, iteration, list(members), {"file_sha256": digest})
            for iteration, members in groupby(read_checked(path), key=lambda read: read[0].iteration)
        ]


def _open_run(store_uri: str, name: str, settings: Mapping[str, Any]) -> Run:
    runs = RunStore(store_uri)
    if name not in runs.list():
        with suppress(InputError):
            return runs.create(name, settings)
    run = runs.open(name)
    before, now = run.config.get(IMPORTED), settings[IMPORTED]
    if before is None or before["sha256"] != now["sha256"]:
        held = (
            "was not imported"
            if before is None
            else f"holds the trajectories of another file, {before['file']}"
        )
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
    recipe = Recipe(IMPORT_STAGE, 1, {**settings, "iteration": iteration}, {}, 0, kind="trajectories")
    trajectories, reused = _commit(store, run, recipe, iteration, {"trajectories": len(rows), **found}, rows)
    listing = Recipe(
        GENERATE_ROLLOUTS.name, 1, {}, {"shard-0000": trajectories.artifact_id}, 0, kind="rollouts"
    )
    counters = {**count_rollouts(rows), **found}
    written = scan_trajectories([store.open(trajectories.artifact_id).path(TRAJECTORIES)])
    metrics = {**success_rates(counters), **graded_rewards(written), **gain_metrics(written)}
    rollouts, _ = _commit(store, run, listing, iteration, counters, None, metrics)
    return ImportedIteration(
        iteration, len(rows), trajectories.artifact_id, rollouts.artifact_id, reused, replaced
    )


def _commit(
    store: ArtifactStore,
    run: Run,
    recipe: Recipe,
    iteration: int,
    counters: Mapping[str, int],
    rows: Sequence[Trajectory] | None,
    metrics: Mapping[str, float] | None = None,
) -> tuple[Manifest, bool]:
    """The artifact of a recipe, written if it is missing, and whether it was there already. The run's ledger
    names it once."""
    manifest = store.find(recipe.artifact_id, recipe.stage)
    reused = manifest is not None
    if manifest is None:
        with store.create(recipe, run=run.name, iteration=iteration) as staging:
            counted = {}
            if rows is not None:
                counted[TRAJECTORIES] = write_trajectories(staging.path / TRAJECTORIES, rows)
            manifest = staging.commit(counters=counters, metrics=metrics or {}, rows=counted).manifest
    known = {(entry.iteration, entry.artifact_id) for entry in run.stages()}
    if (iteration, manifest.artifact_id) not in known:
        seconds = (manifest.finished_at - manifest.started_at).total_seconds()
        run.record(
            iteration, recipe.stage, manifest.artifact_id, kind=recipe.kind, reused=reused, seconds=seconds
        )
    return manifest, reused
