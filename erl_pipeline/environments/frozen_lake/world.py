"""What a policy is not told: which word moves where, and which symbol is what."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from erl_pipeline.environments.frozen_lake.realms import realm_permutation, realm_word
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction


@dataclass(frozen=True)
class Symbols:
    """The characters a board is shown with."""

    player: str
    frozen: str
    hole: str
    goal: str


@dataclass(frozen=True)
class World:
    """`actions` maps each action word to the direction it moves in. `realm` is the name that the policy sees
    before the board; empty for none."""

    actions: Mapping[str, Direction]
    symbols: Symbols
    realm: str = ""

    def word_for(self, direction: Direction) -> str:
        """The action word that moves in this direction."""
        return next(word for word, meaning in self.actions.items() if meaning == direction)


def world_of_task(config: FrozenLakeConfig, seed: int, task_id: str, realm: int | None = None) -> World:
    """The world of one task. `seed` is the run's; per-task permutations derive from it and the task's id.

    `realm` is the task's, with `actions: realms`.
    """
    world_seed = seed if config.world_seed is None else config.world_seed
    words: Sequence[str]
    meanings: Sequence[Direction]
    if config.actions == "named":
        words, meanings = DIRECTIONS, DIRECTIONS
    elif config.actions == "per_task":
        words, meanings = (
            config.action_words,
            random.Random(f"actions/{seed}/{task_id}").sample(DIRECTIONS, 4),
        )
    elif realm is not None:
        words, meanings = config.action_words, realm_permutation(world_seed, realm)
    else:
        words, meanings = config.action_words, hidden_permutation(world_seed)
    symbols = list(config.symbols)
    if config.permute_symbols:
        random.Random(f"symbols/{seed}/{task_id}").shuffle(symbols)
    return World(
        dict(zip(words, meanings, strict=True)), Symbols(*symbols), "" if realm is None else realm_word(realm)
    )


def hidden_permutation(world_seed: int) -> tuple[Direction, ...]:
    """The directions of the four action words; any 24 seeds in a row give 24 different worlds."""
    return list(permutations(DIRECTIONS))[(5 + 7 * world_seed) % 24]
