"""What kinds of tasks have in common: splits by content, files with a JSON object a line, and libraries that
make tasks in one version only."""

import hashlib
import importlib.metadata
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import KeptSplit, Split
from storage.errors import ConfigError, InputError

Parsed = TypeVar("Parsed")
Item = TypeVar("Item")

KEPT: Mapping[Split, KeptSplit] = {"held_out": "held-out", "test": "test"}
"""The splits that keep a problem from training."""

_QUARTERS: tuple[Split, ...] = ("training", "training", "held_out", "test")


def hashed_split(problem: str, *, test: bool) -> Split:
    """The split of a problem, by its text alone: half of all problems are trained on, a quarter is held out,
    and a quarter is for the test, or is trained on too where there is no test split."""
    split = _QUARTERS[hashlib.sha256(problem.encode()).digest()[0] % len(_QUARTERS)]
    return "training" if split == "test" and not test else split


def require_some_to_train(
    held_out_file: str | None, held_out_share: float, test_share: float, what: str
) -> None:
    """Raise `ValueError` where the shares that are kept from training leave nothing; `what`: one of the
    tasks."""
    held_out = 0.0 if held_out_file is not None else held_out_share
    if held_out + test_share >= 1.0:
        raise ValueError(
            f"held_out_share: {held_out_share} and test_share: {test_share} leave no {what} to train on; "
            "together they must be below 1"
        )


def in_random_order(items: Iterable[Item], place: Callable[[Item], str], seed: str) -> list[Item]:
    """The items in an order that `seed` and their places decide, and not the order in which they come."""
    drawn = sorted(items, key=place)
    random.Random(seed).shuffle(drawn)
    return drawn


def files_in(settings: PluginSettings, *names: str) -> dict[str, Path]:
    """The files that these settings name; those that are not given are left out."""
    given = {name: getattr(settings, name) for name in names}
    return {name: Path(path) for name, path in given.items() if path is not None}


def file_text(path: Path, what: str) -> str:
    """The text of a file. Raises `InputError`, which calls the file `what`, where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not UTF-8 text (byte {error.start})") from error


def json_lines(
    path: Path, what: str, keys: Sequence[str], parse: Callable[[int, dict[str, Any]], Parsed]
) -> Iterator[tuple[int, Parsed]]:
    """The number of each line that is not blank, from 1 on, and what `parse` makes of its object.

    Args:
        what: what the file is called in messages.
        keys: what an object must have.
        parse: from the line's number and its object; raises `ValueError` saying what is wrong.

    Raises `InputError` naming the file, the line and what is wrong with it.
    """
    for number, line in enumerate(file_text(path, what).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            parsed = parse(number, with_keys(_json(line), keys))
        except ValueError as error:
            raise InputError(f"{what} {path}, line {number}: {error}") from error
        yield number, parsed


def with_keys(record: Any, keys: Sequence[str]) -> dict[str, Any]:
    """An object that has these keys. Raises `ValueError` naming those that are missing."""
    missing = [key for key in keys if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; needed: an object with {', '.join(keys)}")
    found: dict[str, Any] = record
    return found


def filled_text(key: str, value: Any) -> str:
    """A text, without space around it. Raises `ValueError` for an empty one and any other value."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: {repr(value)[:80]}; allowed is a text that is not empty")
    return value.strip()


def _json(line: str) -> Any:
    try:
        return json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


@cache
def require_version(package: str, version: str) -> None:
    """Raise `ConfigError` where a library whose tasks were looked through is missing, or of another version.
    Its extra has the name of the package."""
    install = f"pip install 'erl-pipeline[{package}]'"
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"environment: {package} is not installed: {install}") from error
    if found != version:
        raise ConfigError(
            f"environment: {package} {found} is installed, but the list of what can be trained on is for "
            f"{version}: {install}"
        )
