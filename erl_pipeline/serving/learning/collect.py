"""Collecting: settled episodes of a served policy become one sealed artifact, which can be trained on.

The artifact's id is a digest of the records, so it is known before anything is learned from it, and the same
log gives the same artifact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.origins import commit_rollouts, kept_apart, open_import
from erl_pipeline.serving.learning.rows import Batch, EpisodeRows, episode_rows
from erl_pipeline.serving.learning.settled import TrafficIndex, index_traffic
from erl_pipeline.serving.settings import EpisodeSettings
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import count_rollouts
from storage.artifacts.recipe import Recipe, digest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Told
from storage.runs.documents import IMPORTED
from storage.runs.run import Run, RunStore
from storage.serving.collected import (
    COLLECT_STAGE,
    CORRECTIONS,
    SERVED,
    SERVED_CORRECTIONS,
    SERVED_TRAJECTORIES,
    traffic_run,
)
from storage.serving.traffic import segments
from storage.tables.parquet import RowWriter, scan_files
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.trajectories import TRAJECTORIES as TRAJECTORY_TABLE
from storage.tables.trajectories import Trajectory, trajectory_id

SMALLEST_GROUP = 8
"""Rated episodes of one type of tasks in a batch; the mean of fewer says too little to compare with."""

_CHUNK_EPISODES = 1000


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

    `late` counts records that came after their episode was sealed, which are in no batch; `torn` counts those
    that a kill cut short.
    """

    batch: SealedBatch | None
    settled: int
    rated: int
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
) -> Collected:
    """Seal what is settled in the log of a served run as the next batch. After a kill, the same call gives
    the same batch.

    Args:
        at_least: rated episodes without which all are left for later; 0: also seal what nobody rated.
        corrections: seal corrected answers beside the rows.

    Raises:
        DamagedRecord: a record of the log is not as it was written.
        RunBusy: another process collects.
        InputError: there is no such run, or the name of its traffic's run is taken.
    """
    served = RunStore(store_uri).open(run)
    paths = segments(store_uri, run)
    if not paths:
        return Collected(None, 0, 0, 0, 0)
    traffic = open_import(store_uri, traffic_run(run), {IMPORTED: {"served": run}})
    with traffic.lock():
        store = ArtifactStore(store_uri)
        batches = sealed_batches(store_uri, run)
        sealed = _sealed_episodes(store, batches)
        index = index_traffic(run, paths)
        settle = timedelta(minutes=settings.idle_minutes, hours=settings.settle_hours)
        episodes = index.settled(now, settle, sealed)
        rated = index.rated(episodes)
        batch = None
        if episodes and rated >= at_least:
            batch = _seal(store, traffic, run_config(served), index, episodes, len(batches) + 1, corrections)
    return Collected(batch, len(episodes), rated, index.late(sealed), index.torn)


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


def _sealed_episodes(store: ArtifactStore, batches: Iterable[SealedBatch]) -> dict[str, float]:
    """Episodes of batches -> when they were sealed, in seconds since 1970."""
    sealed: dict[str, float] = {}
    for batch in batches:
        artifact = store.open(batch.trajectories_id)
        # What pruning keeps of rows is enough.
        rows = scan_files([artifact.rows_path(TRAJECTORIES)], TRAJECTORY_TABLE)
        ids = rows.select("episode_id").collect()["episode_id"]
        sealed |= dict.fromkeys(ids, artifact.manifest.started_at.timestamp())
    return sealed


def _seal(
    store: ArtifactStore,
    traffic: Run,
    config: RunConfig,
    index: TrafficIndex,
    episodes: Sequence[int],
    iteration: int,
    corrections: bool,
) -> SealedBatch:
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
    batch = Batch(recipe.artifact_id, iteration, role, threshold, kept_apart(config).asked)
    write = partial(_write, batch, index, episodes, corrections)
    committed = commit_rollouts(store, traffic, recipe, iteration, write, lambda made: made.counters)
    made = committed.trajectories
    return SealedBatch(iteration, made.artifact_id, committed.rollouts.artifact_id, made.counters)


def _write(
    batch: Batch, index: TrafficIndex, episodes: Sequence[int], corrections: bool, folder: Path
) -> Told:
    """Write the rows of a batch, a few episodes at a time."""
    rows = (episode_rows(batch, each, records) for each, records in index.records(episodes))
    counts: Counter[str] = Counter()
    with (
        RowWriter(folder / TRAJECTORIES, TRAJECTORY_TABLE) as trajectories,
        RowWriter(folder / FURTHER_SEQUENCES, TRAJECTORY_TABLE) as further,
        RowWriter(folder / SERVED, SERVED_TRAJECTORIES) as served,
        RowWriter(folder / CORRECTIONS, SERVED_CORRECTIONS) as corrected,
    ):
        grouped = in_groups(batch.artifact_id, rows, index.rated_by_type(episodes))
        while chunk := list(islice(grouped, _CHUNK_EPISODES)):
            attempts = [each.episode.trajectories[0] for each in chunk]
            _add(trajectories, attempts)
            _add(further, [row for each in chunk for row in each.episode.trajectories[1:]])
            served.add([vars(row) for each in chunk for row in each.episode.served])
            if corrections:
                corrected.add([vars(row) for each in chunk for row in each.episode.corrections])
            counts.update(count_rollouts(attempts))
            counts["rated"] += sum(each.episode.is_scored for each in chunk)
            counts["not_grouped"] += sum(each.episode.is_scored and not each.compared for each in chunk)
    files = {TRAJECTORIES: trajectories.count, SERVED: served.count}
    for name, written in {FURTHER_SEQUENCES: further.count, CORRECTIONS: corrected.count}.items():
        if written:
            files[name] = written
        else:
            (folder / name).unlink()
    if corrections:
        counts["corrections"] = corrected.count
    return {"counters": dict(counts), "rows": files}


def _add(writer: RowWriter, rows: Sequence[Trajectory]) -> None:
    for row in rows:
        row.validate()
    if rows:
        writer.add([vars(row) for row in rows])


@dataclass(frozen=True)
class GroupedEpisode:
    """An episode in its group. `compared`: others are in it, so that its reward says something."""

    episode: EpisodeRows
    compared: bool


def in_groups(
    artifact_id: str, episodes: Iterable[EpisodeRows], possible: Mapping[str, int]
) -> Iterator[GroupedEpisode]:
    """Episodes in groups: all scored ones of the same type of tasks, if they are at least `SMALLEST_GROUP`;
    any other is alone in a group.

    The first few of a type are given late, when it is known how many there are.

    Args:
        possible: how many of each type may be scored, at most.
    """
    waiting: dict[str, list[EpisodeRows]] = {}
    for episode in episodes:
        task_type = episode.task_type
        if not episode.is_scored or possible.get(task_type, 0) < SMALLEST_GROUP:
            yield GroupedEpisode(episode, compared=False)
            continue
        of_type = waiting.setdefault(task_type, [])
        if len(of_type) < SMALLEST_GROUP:
            of_type.append(episode)
            if len(of_type) < SMALLEST_GROUP:
                continue
            ready = of_type
        else:
            ready = [episode]
        group = trajectory_id(artifact_id, "group", task_type)
        yield from (GroupedEpisode(each.in_group(group), compared=True) for each in ready)
    for of_type in waiting.values():
        if len(of_type) < SMALLEST_GROUP:
            yield from (GroupedEpisode(each, compared=False) for each in of_type)
