"""The quality of attempts with the sampler `tiers`: their success, and how much they differ from others."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from erl_pipeline.config.replay import TierSettings
from erl_pipeline.environments.messages import words_of

if TYPE_CHECKING:
    from erl_pipeline.stages.training.replay.experience import Experience
    from storage.artifacts.store import ArtifactStore
    from storage.memory.entries import Embedder
    from storage.tables.trajectories import Trajectory

Similarities = Callable[["Sequence[Trajectory]"], list[float]]
"""Of each attempt of a group, the mean cosine similarity to others, in [-1, 1]."""

COMPARED_ATTEMPTS = 32
"""New attempts are compared with at most so many stored attempts at their task, the newest ones."""


def qualities(
    successes: Sequence[bool], similarities: Sequence[float], settings: TierSettings
) -> list[float]:
    """Quality of each attempt of a group, in [0, 1]: the weighted sum of its success and its difference from
    others. A similarity below 0 counts as 0."""
    share = settings.success_weight
    return [
        share * success + (1.0 - share) * (1.0 - max(similarity, 0.0))
        for success, similarity in zip(successes, similarities, strict=True)
    ]


def by_tokens(rows: Sequence[Trajectory]) -> list[float]:
    """Similarity of the attempts of a group to each other. An attempt's vector counts how often each token id
    occurs in its response."""
    vectors = [Counter(row.response_token_ids) for row in rows]
    return _to_the_others([[_cosine(one, other) for other in vectors] for one in vectors])


def by_embedding(
    store: ArtifactStore, experience: Experience, task_ids: Sequence[str], embedder: Embedder
) -> Similarities:
    """Similarity of what was said in the attempts of a group to what was said in the task's newest stored
    attempts; to each other where the task has none."""
    import polars as pl

    from erl_pipeline.stages.training.replay.experience import read_candidates

    of_tasks = experience.members.filter(pl.col("task_id").is_in(task_ids))
    newest = of_tasks.group_by("task_id", maintain_order=True).tail(COMPARED_ATTEMPTS)
    earlier: dict[str, list[str]] = {}
    for each in read_candidates(store, newest):
        earlier.setdefault(each.row.task_id, []).append(response_text(each.row))

    def similar(rows: Sequence[Trajectory]) -> list[float]:
        vectors = embedder.embed([response_text(row) for row in rows]).astype(float)  # [row, dimension]
        said = earlier.get(rows[0].task_id)
        if said is None:
            return _to_the_others((vectors @ vectors.T).tolist())
        return [float(mean) for mean in (vectors @ embedder.embed(said).astype(float).T).mean(axis=1)]

    return similar


def response_text(row: Trajectory) -> str:
    """What the policy has said in an attempt, and the tools that it called."""
    return "\n".join(words_of(each) for each in json.loads(row.messages) if each["role"] == "assistant")


def tiers_of(ranked: Sequence[float], count: int) -> list[int]:
    """The tier of each attempt of a group by its quality, of `count` tiers of which 0 is the best. Of equal
    attempts the first ranks higher."""
    order = sorted(range(len(ranked)), key=lambda index: -ranked[index])
    tiers = [0] * len(ranked)
    for rank, index in enumerate(order):
        tiers[index] = rank * count // len(ranked)
    return tiers


def _to_the_others(cosines: Sequence[Sequence[float]]) -> list[float]:
    """Of each row, the mean without the diagonal; 0 where it is alone."""
    others = [[value for at, value in enumerate(row) if at != place] for place, row in enumerate(cosines)]
    return [math.fsum(values) / len(values) if values else 0.0 for values in others]


def _cosine(one: Counter[int], other: Counter[int]) -> float:
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return sum(count * other[token] for token, count in one.items()) / lengths if lengths else 0.0
