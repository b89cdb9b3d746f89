"""Which datasets of reasoning-gym can be trained on: a list that is kept beside this module.

`benchmarks/qualify/reasoning_gym_datasets.py` makes the list: it tries answers of all kinds on many entries.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files

LIST = "qualified.toml"


@dataclass(frozen=True)
class Qualification:
    """The list.

    `qualified`: names. `numeric`: those of them whose answers are all numbers. `refused`: name -> why.
    """

    qualified: frozenset[str]
    numeric: frozenset[str]
    refused: Mapping[str, str]


@lru_cache(maxsize=1)
def qualification() -> Qualification:
    """The list of this version; read once."""
    text = files(__package__).joinpath(LIST).read_text(encoding="utf-8")
    record = tomllib.loads(text)
    return Qualification(
        frozenset(record["qualified"]), frozenset(record["numeric"]), dict(record["refused"])
    )


def require_qualified(name: str) -> None:
    """Raise `ValueError`, with the reason, for a name that cannot be trained on."""
    listed = qualification()
    if name in listed.qualified:
        return
    if name in listed.refused:
        raise ValueError(f"tasks: {name} of reasoning-gym is refused: {listed.refused[name]}")
    near = get_close_matches(name, listed.qualified, n=3)
    hint = (
        f"; similar are {', '.join(near)}" if near else f"; there are {', '.join(sorted(listed.qualified))}"
    )
    raise ValueError(f"tasks: {name}: reasoning-gym has no dataset of this name{hint}")
