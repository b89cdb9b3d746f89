"""Which samples of a group see memory: drawn by the seed, so that its effect can be told from chance."""

from __future__ import annotations

import math

from erl_pipeline.episodes.rows import EpisodeIdentity
from storage.artifacts.recipe import derive_seed
from storage.tables.trajectories import FREE, GUIDED

_SEEDS = 2**63


def subgroup_of(identity: EpisodeIdentity, withhold: float) -> str | None:
    """`free` where memory is withheld from an episode, else `guided`; None where all episodes see memory.

    Systematic sampling: of any K samples in a row memory is withheld from K * `withhold`, rounded up or down,
    and from each with probability `withhold`. It depends only on (run seed, iteration, task, sample).
    """
    if withhold == 0.0:
        return None
    origin = identity.provenance
    drawn = derive_seed(origin.run_seed, origin.iteration, identity.task.task_id, "withhold") / _SEEDS
    place = drawn + identity.sample_index * withhold
    return FREE if math.floor(place + withhold) > math.floor(place) else GUIDED
