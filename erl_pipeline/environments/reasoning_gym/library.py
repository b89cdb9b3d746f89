"""The library itself, imported only when tasks are generated or answers are scored; its scoring is guarded,
so that every answer gets a score."""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Any

from erl_pipeline.environments.tasks import require_version
from storage.errors import ConfigError

VERSION = "0.1.25"
"""The list of qualified datasets is for this version; another version may score differently."""


def dataset(name: str, config: Mapping[str, Any], *, size: int, seed: int) -> Any:
    """A dataset of the library. Raises `ConfigError` where the package is missing or refuses `config`."""
    require_version("reasoning-gym", VERSION)
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


LONGEST_ANSWER = 10_000
"""Characters; several scorers take a time that grows with the square of the length, or faster."""

_ANSWER_IN_METADATA = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}

_POWER_OR_HUGE = re.compile(r"\*\s*\*|/\s*/|[0-9]{13}")

_HUGE_EXPONENT = re.compile(r"\d[eE][+-]?\d{4,}")


@dataclass(frozen=True)
class AnswerScore:
    """A score from 0 to 1; 1 is right. `problem`: why the answer was not scored; its score is then 0."""

    value: float
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Nothing below 1 is right: several scorers give a little to any text."""
        return self.value == 1.0


def score(name: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> AnswerScore:
    """The score of an answer to a stored entry of dataset `name`.

    Where the library raises, or gives a number outside 0 to 1, the score is 0, with the problem.
    """
    problem = _unsafe(name, answer)
    if problem is not None:
        return AnswerScore(0.0, problem)
    library_scorer = scorer(name, config)
    try:
        value = float(library_scorer.score_answer(answer, deepcopy(dict(entry))))
    # Scorers raise whatever their parsing of an odd answer leads to; such an answer is wrong.
    except Exception as error:
        return AnswerScore(0.0, f"the scorer could not read it ({type(error).__name__})")
    if not 0.0 <= value <= 1.0:
        return AnswerScore(0.0, f"the scorer gave {value}, which is not between 0 and 1")
    return AnswerScore(value)


def known_answer(name: str, entry: Mapping[str, Any]) -> str | None:
    """A right answer to an entry, where the library knows one."""
    answer = entry["answer"]
    if answer is None and name in _ANSWER_IN_METADATA:
        answer = entry["metadata"][_ANSWER_IN_METADATA[name]]
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer)


def _unsafe(name: str, answer: str) -> str | None:
    """Why the answer must not be given to the scorer; None for one that may."""
    if len(answer) > LONGEST_ANSWER:
        return f"it is longer than {LONGEST_ANSWER} characters"
    if _HUGE_EXPONENT.search(answer):
        return "it has a number with a huge exponent"
    harmless = _EVALUATED.get(name)
    if harmless is not None and not harmless(answer):
        return "it has signs that no answer to this question needs"
    return None


def _is_literal(answer: str) -> bool:
    """Whether it is safe to `eval`: words alone, or a literal such as a list."""
    if re.fullmatch(r"[\w\s]*", answer):
        return True
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_arithmetic(answer: str) -> bool:
    """Whether it is made of numbers and + - * / ( ) alone, without powers."""
    return bool(re.fullmatch(r"[0-9\s+\-*/()]*", answer)) and not _POWER_OR_HUGE.search(answer)


def _has_small_numbers(answer: str) -> bool:
    """Whether no number has more than one digit: `R44444444` turns a side of the cube so many times."""
    return not re.search(r"\d\d", answer)


_EVALUATED: Mapping[str, Callable[[str], bool]] = {
    "binary_matrix": _is_literal,
    "countdown": _is_arithmetic,
    "n_queens": _is_literal,
    "puzzle24": _is_arithmetic,
    "rubiks_cube": _has_small_numbers,
    "spiral_matrix": _is_literal,
    "string_insertion": _is_literal,
}
"""Dataset whose scorer does what an answer says -> a function that says whether the answer is harmless."""
