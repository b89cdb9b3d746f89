"""The library itself, which is imported only when tasks are generated or answers are scored."""

from __future__ import annotations

import importlib.metadata
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Any

from storage.errors import ConfigError

VERSION = "0.1.25"
"""The list of qualified datasets is for this version; another version may score differently."""

_INSTALL = "pip install 'erl-pipeline[reasoning-gym]'"


def dataset(name: str, config: Mapping[str, Any], *, size: int, seed: int) -> Any:
    """A dataset of the library. Raises `ConfigError` where the package is missing or refuses `config`."""
    _require_library()
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    except (AssertionError, TypeError, ValueError) as error:
        shown = str(error) or "one of the values is not allowed"
        raise ConfigError(f"environment.tasks.{name}.config: {dict(config)}: {shown}") from error


def scorer(name: str, config: Mapping[str, Any]) -> Any:
    """The dataset whose `score_answer(answer, entry)` scores answers; it is kept for later answers."""
    return _scorer(name, json.dumps(config, sort_keys=True))


@lru_cache(maxsize=128)
def _scorer(name: str, config: str) -> Any:
    return dataset(name, json.loads(config), size=1, seed=0)


@lru_cache(maxsize=1)
def _require_library() -> None:
    try:
        version = importlib.metadata.version("reasoning-gym")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"environment: reasoning-gym is not installed: {_INSTALL}") from error
    if version != VERSION:
        raise ConfigError(
            f"environment: reasoning-gym {version} is installed, but the list of tasks that can be trained "
            f"on is for {VERSION}: {_INSTALL}"
        )


LIST = "qualified.toml"


@dataclass(frozen=True)
class QualifiedGenerators:
    """The list.

    `qualified`: names. `numeric`: those of them whose answers are all numbers. `refused`: name -> why.
    """

    qualified: frozenset[str]
    numeric: frozenset[str]
    refused: Mapping[str, str]


@lru_cache(maxsize=1)
def qualification() -> QualifiedGenerators:
    """The list of this version; read once."""
    text = files(__package__).joinpath(LIST).read_text(encoding="utf-8")
    record = tomllib.loads(text)
    return QualifiedGenerators(
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
