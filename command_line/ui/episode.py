"""An episode of a run with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from command_line.episodes.reading import REPLAYED, episode_training, find_episode, memory_texts
from command_line.ui.rows import row_files
from command_line.ui.stored import Stored, StoredRun
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.views.report.episodes import (
    EpisodeParts,
    TaskPicture,
    drawing_of,
    episode_parts,
    in_order,
    task_picture,
)
from storage.artifacts.manifest import Manifest
from storage.lineage.trained_on import record_file
from storage.memory.entries import MEMORY, scan_deltas


@dataclass(frozen=True)
class ShownEpisode:
    """A whole episode; `rows` are its trajectories in order. `solved` is None where it was not scored."""

    episode_id: str
    holder: Manifest
    rows: Sequence[Mapping[str, Any]]
    shown: EpisodeParts
    task: TaskPicture
    solved: bool | None


def read_episode(stored: Stored, run: StoredRun, iteration: int, identifier: str) -> ShownEpisode:
    """An episode of an iteration, of training or of an evaluation.

    Raises InputError where the iteration has no such episode.
    """
    paths = {
        **row_files(stored, run, (iteration, iteration)),
        **row_files(stored, run, (iteration, iteration), held_out=True),
    }
    found, holder = find_episode(paths, identifier)
    rows = in_order(found)
    training = training_of(stored, run, iteration, rows[0]["episode_id"])
    texts = seen_texts(stored, run, rows)
    return ShownEpisode(
        rows[0]["episode_id"],
        holder,
        rows,
        episode_parts(rows, texts, drawing_of(run.config, rows[0]), training),
        task_picture(json.loads(rows[0]["task_payload"] or "{}")),
        _solved([row["success"] for row in rows]),
    )


def _solved(successes: Sequence[bool | None]) -> bool | None:
    if not any(successes) and None in successes:
        return None
    return any(successes)


def training_of(
    stored: Stored, run: StoredRun, iteration: int, episode_id: str
) -> dict[str, list[dict[str, Any]]]:
    """Like `episode_training` over the artifacts since an iteration, the episode's own, but reads only the
    training records that have rows of the episode."""
    files = stored.kept(run.name, "record files", lambda: _record_files(stored, run))
    replays = stored.kept(
        run.name, "replays", lambda: [each for each in run.history if each.kind in REPLAYED]
    )
    near = [files[path] for path in stored.records.holding(files, "episode_id", [episode_id])]
    # Replays of an episode are trained on later, never before.
    read = [record.manifest for record in [*replays, *near] if record.iteration >= iteration]
    return episode_training(stored.artifacts, read, episode_id)


def seen_texts(stored: Stored, run: StoredRun, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Like `memory_texts`, but reads only the files of the run's memory that added the entries, if they have
    all of them."""
    seen = list(dict.fromkeys(entry for row in rows for entry in row["memory_entry_ids"] or ()))
    if not seen:
        return {}
    files = stored.kept(run.name, "memory files", lambda: memory_files(stored, run))
    near = [
        stored.artifacts.open_found(files[path]).path(path.name)
        for path in stored.entries.holding(files, "entry_id", seen)
    ]
    wanted = pl.col("entry_id").is_in(pl.Series(seen, dtype=pl.String).implode())
    texts = dict(scan_deltas(near).filter(wanted).select("entry_id", "text").collect().iter_rows())
    return texts if len(texts) == len(seen) else memory_texts(stored.artifacts, rows)


def _record_files(stored: Stored, run: StoredRun) -> dict[Path, StageRecord]:
    return {
        stored.artifacts.open_file(record.manifest, name): record
        for record in run.history
        if (name := record_file(record.manifest)) is not None
    }


def memory_files(stored: Stored, run: StoredRun) -> dict[Path, Manifest]:
    """The files of entries of a run's memory versions, and the version of each."""
    return {
        stored.artifacts.open_found(manifest).path(entry.path): manifest
        for manifest in stored.manifests(run)
        if manifest.kind == "memory"
        for entry in manifest.files
        if entry.table == MEMORY.name
    }
