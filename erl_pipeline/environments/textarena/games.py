"""Which games of TextArena can be trained on: a list that is kept beside this module.

`benchmarks/qualify/textarena_games.py` makes the list: it begins every game several times, in several
processes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

LIST = "games.toml"


@dataclass(frozen=True)
class Games:
    """The list. `qualified`: names. `drawn_in_play`: those of them that draw random numbers after their
    beginning too. `refused`: name -> why."""

    qualified: frozenset[str]
    drawn_in_play: frozenset[str]
    refused: Mapping[str, str]


@lru_cache(maxsize=1)
def games() -> Games:
    """The list of this version; read once."""
    record = tomllib.loads(files(__package__).joinpath(LIST).read_text(encoding="utf-8"))
    return Games(frozenset(record["qualified"]), frozenset(record["drawn_in_play"]), dict(record["refused"]))


def require_qualified(game: str) -> None:
    """Raise `ValueError`, with the reason, for a game that cannot be trained on."""
    listed = games()
    if game in listed.qualified:
        return
    if game in listed.refused:
        raise ValueError(f"game: {game} of TextArena is refused: {listed.refused[game]}")
    raise ValueError(
        f"game: {game}: TextArena has no game of this name for one player; there are "
        f"{', '.join(sorted(listed.qualified))}"
    )
