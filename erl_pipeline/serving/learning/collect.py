"""Collecting: settled episodes of a served policy become one sealed artifact, which can be trained on.

The artifact's id is a digest of the records, so it is known before anything is learned from it, and the same
log gives the same artifact.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.origins import commit_rollouts, open_import
from erl_pipeline.serving.learning.batch_files import held_out, write_batch
from erl_pipeline.serving.learning.processes import Map, mapping
from erl_pipeline.serving.learning.rows import Batch
from erl_pipeline.serving.learning.settled import Sealed, TrafficIndex, id_number, index_traffic
from erl_pipeline.serving.settings import EpisodeSettings
from erl_pipeline.stages.names import TRAJECTORIES
from storage.artifacts.recipe import Recipe, digest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Told
from storage.errors import store_errors
from storage.runs.documents import IMPORTED
from storage.runs.run import Run, RunStore
from storage.serving.collected import COLLECT_STAGE, SERVED_TRAJECTORIES, traffic_run
from storage.serving.traffic import segments
from storage.tables.parquet import scan_files
from storage.tables.trajectories import TRAJECTORIES as TRAJECTORY_TABLE

PROCESS_BYTES = 100_000_000
"""Of a log that occupy a further process: starting one takes seconds."""


@dataclass(frozen=True)
class SealedBatch:
    """A batch of traffic: iteration `iteration` of the run that holds the traffic, with the counters of its
    trajectories."""

    iteration: int
    trajectories_id: str
    rollouts_id: str
    counters: Mapping[str, int | float]

    @property
    def rated(self) -> int:
        """Episodes that somebody rated and that can be trained on."""
        return int(self.counters["rated"])


@dataclass(frozen=True)
class Collected:
    """What a collection found: `settled` episodes that no earlier batch has, how many of them are `rated`,
    and the `batch` they are in now; None if they were left for later, or if there were none.

    Where all were left for want of rated ones, `rated` may leave out those that cannot be trained on, such as
    answers at temperature 0. `unsettled` counts episodes that may still go on, `late` turns and feedback that
    came after their episode was sealed, which are in no batch, and `torn` records that a kill cut short.
    """

    batch: SealedBatch | None
    settled: int
    rated: int
    unsettled: int
    late: int
    torn: int


def collect(
    store_uri: str,
    run: str,
    settings: EpisodeSettings,
    now: datetime,
    *,
    at_least: int = 1,
    corrections: bool = False,
    processes: int | None = None,
) -> Collected:
    """Seal what is settled in the log of a served run as the next batch. After a kill, the same call gives
    the same batch.

    Args:
        at_least: rated episodes that can be trained on, without which all are left for later; 0: also seal
            what nobody rated.
        corrections: seal corrected answers beside the rows.
        processes: the most that read a log; default: as many as there are processors, for a large one.

    Raises:
        DamagedRecord: a record of the log is not as it was written.
        RunBusy: another process collects.
        InputError: there is no such run, or the name of its traffic's run is taken.
    """
    served = RunStore(store_uri).open(run)
    if not segments(store_uri, run):
        return Collected(None, 0, 0, 0, 0, 0)
    traffic = open_import(store_uri, traffic_run(run), {IMPORTED: {"served": run}})
    with traffic.lock():
        store = ArtifactStore(store_uri)
        batches = sealed_batches(store_uri, run)
        before = _sealed_before(store, batches)
        sizes = _sizes(segments(store_uri, run))
        with mapping(processes or _processes(sizes.values())) as map_parts:
            index = index_traffic(run, list(sizes), map_parts)
            settle = timedelta(minutes=settings.idle_minutes, hours=settings.settle_hours)
            are_sealed = index.are_sealed(before)
            unsealed = index.unsealed(are_sealed, before.episodes)
            episodes = index.settled(now, settle, unsealed)
            rated = index.rated(episodes)
            batch = None
            if episodes and rated >= at_least:
                config, iteration = run_config(served), len(batches) + 1
                try:
                    batch = _seal(
                        store, traffic, config, index, episodes, iteration, corrections, map_parts, at_least
                    )
                except _TooFew as few:
                    rated = few.rated
            late = index.late(are_sealed, before)
    unsettled = len(unsealed) - len(episodes)
    return Collected(batch, len(episodes), rated, unsettled, late, index.torn)


def _sizes(paths: Iterable[Path]) -> dict[Path, int]:
    """Segment -> its bytes, of those that hold something: a server that ends removes an empty one."""
    sizes: dict[Path, int] = {}
    for path in paths:
        with store_errors("look at", path), suppress(FileNotFoundError):
            if size := path.stat().st_size:
                sizes[path] = size
    return sizes


def _processes(sizes: Iterable[int]) -> int:
    """How many processes read the log."""
    return min(len(os.sched_getaffinity(0)), 1 + sum(sizes) // PROCESS_BYTES)


def sealed_batches(store_uri: str, run: str) -> list[SealedBatch]:
    """The batches of a served run, the oldest first."""
    name, runs, store = traffic_run(run), RunStore(store_uri), ArtifactStore(store_uri)
    if name not in runs.list():
        return []
    entries = runs.open(name).stages()
    rows = {entry.iteration: entry.artifact_id for entry in entries if entry.stage == COLLECT_STAGE}
    listings = {entry.iteration: entry.artifact_id for entry in entries if entry.kind == "rollouts"}
    return [
        SealedBatch(iteration, rows[iteration], rollouts, store.open(rows[iteration]).manifest.counters)
        for iteration, rollouts in listings.items()
        if iteration is not None
    ]


def first_role(config: RunConfig) -> str:
    """The role that a method gives to the attempts with which episodes begin."""
    method = plugins("methods")[config.method.type].value
    reflecting = method.reflecting(method.episode_settings(config.method))
    role: str = method.roles(config.method)[0] if reflecting is None else reflecting.attempt
    return role


def _sealed_before(store: ArtifactStore, batches: Iterable[SealedBatch]) -> Sealed:
    """What batches hold."""
    episodes: set[str] = set()
    turns, feedback = array("Q"), array("Q")
    for batch in batches:
        artifact = store.open(batch.trajectories_id)
        # What pruning keeps of rows is enough.
        rows = scan_files([artifact.rows_path(TRAJECTORIES)], TRAJECTORY_TABLE)
        episodes.update(rows.select("episode_id").collect()["episode_id"])
        served = scan_files(artifact.rows_paths(SERVED_TRAJECTORIES.name), SERVED_TRAJECTORIES)
        columns = served.select("turn_ids", "feedback_ids").collect()
        for ids, column in zip((turns, feedback), columns, strict=True):
            ids.extend(map(id_number, column.explode().drop_nulls()))
    return Sealed(episodes, turns, feedback)


class _TooFew(Exception):
    """Of the rated episodes only so many can be trained on."""

    def __init__(self, rated: int) -> None:
        super().__init__(rated)
        self.rated = rated


def _seal(
    store: ArtifactStore,
    traffic: Run,
    config: RunConfig,
    index: TrafficIndex,
    episodes: Sequence[int],
    iteration: int,
    corrections: bool,
    map_parts: Map,
    at_least: int,
) -> SealedBatch:
    """Raises _TooFew, and seals nothing, where it turns out that fewer than `at_least` can be trained on."""
    role, threshold = first_role(config), config.rollouts.success_threshold
    settings = {
        "run": config.name,
        "iteration": iteration,
        "records_sha256": index.digest(episodes),
        "role": role,
        "success_threshold": threshold,
        "environment": digest(config.environment.model_dump(mode="json")),
        **({"corrections": True} if corrections else {}),
    }
    recipe = Recipe(COLLECT_STAGE, 1, settings, {}, 0, kind="trajectories")
    batch = Batch(recipe.artifact_id, iteration, role, threshold, partial(held_out, config.model_dump_json()))

    def write(folder: Path) -> Told:
        told = write_batch(batch, index, episodes, corrections, map_parts, folder)
        rated = int(told["counters"]["rated"])
        if rated < at_least:
            raise _TooFew(rated)
        return told

    committed = commit_rollouts(store, traffic, recipe, iteration, write, lambda made: made.counters)
    made = committed.trajectories
    return SealedBatch(iteration, made.artifact_id, committed.rollouts.artifact_id, made.counters)
