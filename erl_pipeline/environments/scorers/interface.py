"""The interface of a scorer: how good an answer is.

Any package can add one: a function that an entry point of `erl_pipeline.scorers` names.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import ScorerFailed
from erl_pipeline.environments.raised_at import raised_at
from erl_pipeline.environments.threads import in_thread

LONGEST_ANSWER = 10_000
"""Characters of the longest answer that the built-in scorers look at; a longer one is wrong."""

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


@dataclass(frozen=True)
class Scored:
    """A score from 0 to 1, where 1 is right, and a sentence about the answer that the policy may read.

    The remark must be true and must not give the right answer away: reflections are written from it.
    """

    score: float
    remark: str = ""


class ScorerFunction(Protocol):
    """All that a scorer has to be. It may raise: then the episode's row says so and is not trained on."""

    def __call__(self, answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
        """The score of an answer.

        Args:
            answer: what the policy marked as its answer; None where it marked none.
            payload: the task's `question`, its `answer`, and all further fields of its line.
        """


def altered_numbers(payload: Mapping[str, Any]) -> Sequence[str]:
    """Wrong answers that resemble a right one: where it is a whole number, others with the same digits,
    one with another digit, and a list of guesses; none where the task allows a tolerance, or for other
    answers."""
    text = str(payload["answer"]).strip()
    if not _WHOLE.fullmatch(text) or "tolerance" in payload:
        return ()
    number = int(text)
    if number == 0:  # -0 and .0 are 0.
        return ("0!", "1", "1 0", "2, 1, 0")
    digits = text.lstrip("-")
    guesses = " ".join(map(str, range(number - 3, number + 1)))
    changed = f"{'1' if digits[0] != '1' else '2'}{digits[1:]}"
    found = [f".{digits}", str(-number), changed if number > 0 else f"-{changed}", f"{digits}0", guesses]
    if abs(number) > 2:  # 1 and 2 are their own factorials.
        found.append(f"{text}!")
    return found


@dataclass(frozen=True)
class Scorer:
    """A function that scores, and facts about it. A plain function counts as a scorer with these defaults."""

    score: ScorerFunction
    check_task: Callable[[Mapping[str, Any]], None] = lambda payload: None
    """Raises `ValueError`, saying what is wrong, for the payload of a task that cannot be scored."""
    gold_answer: Callable[[Mapping[str, Any]], str | None] = lambda payload: str(payload["answer"])
    """An answer that scores 1, from a task's payload; `env qualify` checks that it does. None where none is
    known. It never reaches a policy."""
    wrong_answers: Callable[[Mapping[str, Any]], Sequence[str]] = altered_numbers
    """Answers that must not score 1, from a task's payload; `env qualify` checks that they do not."""
    packages: tuple[str, ...] = ()
    """Further packages whose code decides the score; its own always counts."""
    install: str = ""
    """The command that installs `packages`, for the message where one is missing."""
    bounded: bool = False
    """Whether it looks at a limited number of characters and always returns soon; it then needs no thread."""

    def __call__(self, answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
        """The score of an answer."""
        return self.score(answer, payload)


def scorer_named(name: str) -> Scorer:
    """The scorer of an entry point. Raises ConfigError for a name that is unknown or cannot be used."""
    value = plugins("scorers")[name].value
    return value if isinstance(value, Scorer) else Scorer(value)


def checked_score(scorer: Scorer, answer: str | None, payload: Mapping[str, Any]) -> Scored:
    """The score of an answer. Raises `ScorerFailed` where the scorer raises or gives none from 0 to 1."""
    try:
        given = scorer(answer, payload)
    # Whatever a user's code raises, an exit too, concerns one episode only.
    except (Exception, SystemExit) as error:
        raise ScorerFailed(f"{type(error).__name__}: {error} ({raised_at(error)})") from error
    scored = given if isinstance(given, Scored) else Scored(given)
    score = scored.score
    if not isinstance(score, Real) or not math.isfinite(score) or not 0.0 <= score <= 1.0:
        raise ScorerFailed(f"it gave {score!r}; allowed are numbers from 0 to 1")
    if not isinstance(scored.remark, str):
        raise ScorerFailed(f"its remark is {scored.remark!r}, not a text")
    return Scored(float(score), scored.remark)


async def score_answer(scorer: Scorer, answer: str | None, payload: Mapping[str, Any]) -> Scored:
    """`checked_score`, in a thread where it may take long."""
    if scorer.bounded:
        return checked_score(scorer, answer, payload)
    return await in_thread(lambda: checked_score(scorer, answer, payload))


def installed_scorer(name: str) -> str:
    """A name of a scorer that can be used. Raises `ValueError`, for a setting, for any other."""
    found = plugins("scorers")
    if name not in found.found:
        problems = [each.problem for each in found.broken if each.type == name]
        if problems:
            raise ValueError(f"{name} cannot be used: {problems[0]}")
        raise ValueError(
            f"there is no scorer {name!r}; allowed are {', '.join(sorted(found.found))} "
            "(`erl-pipeline plugins` lists what is installed)"
        )
    return name


ScorerName = Annotated[str, AfterValidator(installed_scorer)]


def up_to(longest: int, score: Callable[[str, Mapping[str, Any]], float | Scored]) -> ScorerFunction:
    """A scorer of answers with at most so many characters; longer ones, and missing ones, get 0."""

    def limited(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
        if answer is None:
            return 0.0
        if len(answer) > longest:
            return Scored(0.0, f"An answer of more than {longest:,} characters is not looked at.")
        return score(answer, payload)

    return limited
