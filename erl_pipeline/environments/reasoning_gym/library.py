"""The library itself, which is imported only when tasks are generated or answers are scored."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from functools import lru_cache
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
