"""Realms: named worlds, each with its own permutation of the action words.

A realm's name is shown before the board, so that what was learned of a realm helps in it again, and only
there. Realms that no training task has show whether a lesson is learned and kept within an evaluation.
"""

from __future__ import annotations

import random
from itertools import permutations

from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction


def realm_word(realm: int) -> str:
    """The name of a realm, which the policy sees: `r0`, `r1`, ..."""
    return f"r{realm}"


def training_realms(config: FrozenLakeConfig) -> range:
    """The realms of training tasks; none without `actions: realms`."""
    return range(0 if config.realms is None else config.realms.training)


def held_out_realms(config: FrozenLakeConfig) -> range:
    """The realms that no training task has; they follow those that are trained on."""
    if config.realms is None:
        return range(0)
    return range(config.realms.training, config.realms.training + config.realms.held_out)


def realm_words(config: FrozenLakeConfig) -> list[str]:
    """The names of all realms."""
    return [realm_word(realm) for realm in (*training_realms(config), *held_out_realms(config))]


def realm_permutation(world_seed: int, realm: int) -> tuple[Direction, ...]:
    """The directions of the four action words in a realm (0 to 23); no two realms of a seed have the same."""
    orders = list(permutations(DIRECTIONS))
    random.Random(f"realms/{world_seed}").shuffle(orders)
    return orders[realm]
