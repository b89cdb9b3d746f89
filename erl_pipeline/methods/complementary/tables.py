"""The table of the variant `weights`, and the trajectories that it has stored."""

import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from erl_pipeline.methods.complementary.settings import SCORES, SCORES_FILE
from erl_pipeline.stages.names import ROLLOUTS, chain, trajectory_files
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.parquet import TableFormat, read_rows
from storage.tables.scored import was_scored
from storage.tables.trajectories import scan_trajectories

EXPERIENCE_SCORES = TableFormat(
    name="experience_scores",
    version=1,
    schema=pa.schema(
        [
            pa.field("trajectory_id", pa.string(), nullable=False),
            pa.field("weight", pa.float64(), nullable=False),  # in the loss, and for being drawn again
            pa.field("label", pa.float64()),  # null: not labelled
            pa.field("mean_logprob_then", pa.float64(), nullable=False),  # nats a token, when it was sampled
            pa.field("mean_logprob_now", pa.float64()),  # under the policy of the artifact
            pa.field("advantage", pa.float64()),  # null: not trained on again
        ]
    ),
)
"""One row for each trajectory that an iteration has scored: its own, and stored ones."""

_LEAST = 1e-9
"""Trajectories of a smaller weight are drawn with this one."""

_SMALLEST = sys.float_info.min  # in place of a random number of 0, which has no logarithm


@dataclass(frozen=True)
class StoredTrajectories:
    """What is stored, by trajectory: the files of its iteration, the newest iteration first, and its
    weight."""

    files: Mapping[str, tuple[Path, ...]]
    weights: Mapping[str, float]

    def newest(self, count: int) -> list[str]:
        """The `count` ids that were stored last, the newest iteration first."""
        return list(self.files)[:count]

    def random(self, count: int, seed: int) -> list[str]:
        """As many ids at random, without replacement; all where there are no more."""
        return random.Random(seed).sample(list(self.files), min(count, len(self.files)))

    def weight(self, trajectory_id: str, neutral: float) -> float:
        """Its newest weight; `neutral` where it was never scored."""
        return self.weights.get(trajectory_id, neutral)

    def files_of(self, trajectory_ids: Sequence[str]) -> list[Path]:
        """The files of the iterations that these are from, the newest first."""
        wanted = set(trajectory_ids)
        return list(dict.fromkeys(path for one, of in self.files.items() if one in wanted for path in of))


def read_stored(store: ArtifactStore, newest: Artifact | None, capacity: int) -> StoredTrajectories:
    """The newest trajectories at the end of a chain of scores, at most `capacity` of them. Those without a
    sampled token and those that were not scored are left out: they cannot be trained on again."""
    found: dict[str, tuple[Path, ...]] = {}
    weights: dict[str, float] = {}
    for artifact in chain(store, newest, SCORES):
        if len(found) >= capacity:
            break
        for row in read_rows([artifact.path(SCORES_FILE)], EXPERIENCE_SCORES):
            weights.setdefault(row["trajectory_id"], row["weight"])
        files = tuple(trajectory_files(store.open(artifact.manifest.inputs[ROLLOUTS]), store))
        rows = scan_trajectories(files).filter(was_scored(), pl.col("response_mask").list.sum() > 0)
        ids = rows.select("trajectory_id").collect()["trajectory_id"].to_list()
        found |= dict.fromkeys(ids[: capacity - len(found)], files)
    return StoredTrajectories(found, weights)


def drawn_by_weight(weights: Sequence[float], count: int, seed: int) -> list[int]:
    """Indices of at most `count` trajectories, drawn without replacement, in the order of the draws. Each
    draw takes one of those left, with a probability proportional to its weight."""
    stream = random.Random(seed)
    # Efraimidis and Spirakis 2006: the largest keys u^(1/w) are such a sample. Their logarithms have the same
    # order, and do not become 0 where weights are small.
    keys = [
        (math.log(stream.random() or _SMALLEST) / max(weight, _LEAST), place)
        for place, weight in enumerate(weights)
    ]
    return [place for _, place in sorted(keys, key=lambda each: (-each[0], each[1]))[:count]]
