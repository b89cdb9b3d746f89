"""Choosing the episodes of a run that its report shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from erl_pipeline.config.run import RunConfig
from erl_pipeline.episodes.roles import NEVER_TRAINED
from erl_pipeline.views.report.episodes import (
    ILL_FORMED,
    EpisodeParts,
    TaskPicture,
    drawing_of,
    episode_parts,
    in_order,
    task_picture,
)
from storage.tables.scored import was_scored

_COLUMNS = (
    "trajectory_id",
    "episode_id",
    "task_id",
    "task_type",
    "environment",
    "sample_index",
    "parent_trajectory_id",
    "role",
    "revision_index",
    "success",
    "reward",
    "finish_reason",
    "feedback",
    "messages",
    "text",
    "memory_version",
    "memory_entry_ids",
    "subgroup",
    "task_payload",
)
_KINDS = {
    "helped": "Solved at a later attempt",
    "not_helped": "Failed, also at later attempts",
    "solved": "Solved at the first attempt",
    "failed": "Failed, and not tried again",
}
_IS_TEXT = (
    pl.col("text").is_not_null()
    | (pl.col("finish_reason") == ILL_FORMED)
    | pl.col("role").is_in(sorted(NEVER_TRAINED))
)


@dataclass(frozen=True)
class EpisodeExample:
    """A whole episode and its kind."""

    kind: str
    episode_id: str
    task_id: str
    sample_index: int
    task: TaskPicture
    shown: EpisodeParts


def example_episodes(
    rollouts: pl.LazyFrame, memory_texts: Mapping[str, str], config: RunConfig | None = None
) -> list[EpisodeExample]:
    """One episode of each kind among an iteration's rollouts: the first in order of task and sample.

    `memory_texts` maps the id of a memory entry to its text. `config` is the run's configuration, whose
    environment draws the task. Kinds that did not occur are left out, and so are episodes that were not
    scored. An episode that failed without a second attempt is shown only if no episode had a second attempt.
    """
    chosen = _choose(rollouts)
    rows = rollouts.select(_COLUMNS).filter(pl.col("episode_id").is_in(list(chosen.values()))).collect()
    return [
        _example(
            _KINDS[kind], rows.filter(pl.col("episode_id") == episode_id).to_dicts(), memory_texts, config
        )
        for kind, episode_id in chosen.items()
    ]


def _choose(rollouts: pl.LazyFrame) -> dict[str, str]:
    """Episode ids by kind."""
    first = pl.col("parent_trajectory_id").is_null()
    later = ~first & ~_IS_TEXT
    episodes = (
        rollouts.group_by("episode_id", "task_id", "sample_index")
        .agg(
            pl.col("success").filter(first).any().alias("at_once"),
            later.any().alias("retried"),
            pl.col("success").filter(later).any().alias("later"),
            was_scored().all().alias("scored"),
        )
        .filter("scored")
        .sort("task_id", "sample_index")
        .collect()
    )
    kinds = {
        "helped": pl.col("later"),
        "not_helped": pl.col("retried") & ~pl.col("later"),
        "solved": pl.col("at_once"),
    }
    if not episodes["retried"].any():
        kinds["failed"] = ~pl.col("at_once")
    found = {kind: episodes.filter(condition)["episode_id"] for kind, condition in kinds.items()}
    return {kind: ids[0] for kind, ids in found.items() if not ids.is_empty()}


def _example(
    kind: str, rows: list[dict[str, Any]], memory_texts: Mapping[str, str], config: RunConfig | None
) -> EpisodeExample:
    rows = in_order(rows)
    return EpisodeExample(
        kind=kind,
        episode_id=rows[0]["episode_id"],
        task_id=rows[0]["task_id"],
        sample_index=rows[0]["sample_index"],
        task=task_picture(json.loads(rows[0]["task_payload"])),
        shown=episode_parts(rows, memory_texts, drawing_of(config, rows[0])),
    )
