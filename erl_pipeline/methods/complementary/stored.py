"""The stored trajectories, with the newest weight of each; both are read from the chain of scores."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.methods.complementary.settings import SCORES, SCORES_FILE
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.scored import was_scored

_LEAST = 1e-9
"""Trajectories of a smaller weight are drawn with this one."""


@dataclass(frozen=True)
class Shelf:
    """The trajectories of one iteration: files, and ids in order."""

    files: tuple[Path, ...]
    trajectory_ids: tuple[str, ...]


@dataclass(frozen=True)
class Stored:
    """What is stored: shelves, the newest first, and weights by trajectory."""

    shelves: tuple[Shelf, ...]
    weights: Mapping[str, float]

    def newest(self, count: int) -> list[str]:
        """The `count` ids that were stored last, the newest iteration first."""
        ids = [one for shelf in self.shelves for one in shelf.trajectory_ids]
        return ids[:count]

    def files_of(self, trajectory_ids: Sequence[str]) -> list[Path]:
        """The files of the iterations that these are from, the newest first."""
        wanted = set(trajectory_ids)
        return [
            path
            for shelf in self.shelves
            if not wanted.isdisjoint(shelf.trajectory_ids)
            for path in shelf.files
        ]


def read_stored(store: ArtifactStore, newest: Artifact | None, capacity: int) -> Stored:
    """The newest trajectories at the end of a chain of scores, at most `capacity` of them. Those without a
    sampled token and those that were not scored are left out: they cannot be trained on again."""
    import polars as pl

    from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES
    from storage.tables.parquet import read_rows
    from storage.tables.trajectories import scan_trajectories

    shelves: list[Shelf] = []
    weights: dict[str, float] = {}
    room = capacity
    for artifact in _chain(store, newest):
        if room <= 0:
            break
        for row in read_rows([artifact.path(SCORES_FILE)], EXPERIENCE_SCORES):
            weights.setdefault(row["trajectory_id"], row["weight"])
        files = tuple(trajectory_files(store.open(artifact.manifest.inputs[ROLLOUTS]), store))
        rows = scan_trajectories(files).filter(was_scored(), pl.col("response_mask").list.sum() > 0)
        ids = rows.select("trajectory_id").collect()["trajectory_id"].to_list()
        shelves.append(Shelf(files, tuple(ids[:room])))
        room -= len(ids)
    return Stored(tuple(shelves), weights)


def drawn_by_weight(weights: Sequence[float], count: int, seed: int) -> list[int]:
    """Indices of at most `count` trajectories, drawn without replacement, in the order of the draws. Each
    draw takes one of those left, with a probability proportional to its weight."""
    stream = random.Random(seed)
    # Efraimidis and Spirakis 2006: the largest keys u^(1/w) are such a sample.
    keys = [(stream.random() ** (1.0 / max(weight, _LEAST)), place) for place, weight in enumerate(weights)]
    return [place for _, place in sorted(keys, key=lambda each: (-each[0], each[1]))[:count]]


def _chain(store: ArtifactStore, newest: Artifact | None) -> Iterator[Artifact]:
    artifact = newest
    while artifact is not None:
        yield artifact
        before: Any = artifact.manifest.inputs.get(SCORES)
        artifact = None if before is None else store.open(before)
