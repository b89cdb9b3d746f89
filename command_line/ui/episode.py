"""An episode of a run with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from command_line.episodes.reading import episode_training, find_episode, memory_texts
from command_line.ui.rows import row_files
from command_line.ui.stored import Stored, StoredRun
from erl_pipeline.views.report.episodes import TaskPicture, in_order, task_picture
from erl_pipeline.views.report.screen import Screen, drawing_of, episode_columns
from storage.artifacts.manifest import Manifest


@dataclass(frozen=True)
class ShownEpisode:
    """A whole episode; `rows` are its trajectories in order."""

    episode_id: str
    holder: Manifest
    rows: Sequence[Mapping[str, Any]]
    screen: Screen
    task: TaskPicture
    solved: bool


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
    # What is replayed later is trained later, never before.
    later = [record.manifest for record in run.history if record.iteration >= iteration]
    training = episode_training(stored.artifacts, later, rows[0]["episode_id"])
    texts = memory_texts(stored.artifacts, rows)
    return ShownEpisode(
        rows[0]["episode_id"],
        holder,
        rows,
        episode_columns(rows, texts, drawing_of(run.config, rows[0]), training),
        task_picture(json.loads(rows[0]["task_payload"] or "{}")),
        any(row["success"] for row in rows),
    )
