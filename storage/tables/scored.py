"""Which trajectories were scored: the one place that says so.

An attempt that the environment or its scorer failed has no reward, whatever its column says, and neither has
a served conversation that nobody rated. Its row is kept, with the reason as `finish_reason`, and so is that
of a text, such as a reflection, whose reward would have been that of the attempt. Neither is trained,
compared, remembered, credited or counted in a rate. Where a user was forgotten, the reason says no more
than whether the row was scored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, get_args

if TYPE_CHECKING:
    import polars as pl

Failed = Literal["environment_error", "environment_timeout", "scorer_error"]
"""Finish reasons of attempts that failed: the environment raised, it missed a deadline, or its scorer could
not score the answer."""
FAILED: tuple[Failed, ...] = get_args(Failed)
NOT_RATED, NOT_TRAINABLE = "not_rated", "not_trainable"
NotScored = Literal[Failed, "not_rated", "not_trainable"]
"""Finish reasons of trajectories that were not scored: failed attempts, and conversations of a served policy
that nobody rated, or whose tokens cannot be trained."""
NOT_SCORED: tuple[NotScored, ...] = get_args(NotScored)

REDACTED = "redacted"
"""Finish reason that earlier versions gave to every row whose user was forgotten. Nobody can tell any more
whether it was scored, so it counts as not scored: to drop only those of reward 0 would raise the means."""
REDACTED_SCORED, REDACTED_NOT_SCORED = "redacted_scored", "redacted_not_scored"
"""Finish reasons of rows whose texts and tokens were taken out, since their user was forgotten."""
REDACTED_NOT_TRAINABLE = "redacted_not_trainable"
"""The same of a conversation that was rated, and could not be trained on."""
ALL_REDACTED = (REDACTED, REDACTED_SCORED, REDACTED_NOT_SCORED, REDACTED_NOT_TRAINABLE)
_WITHOUT_REWARD = (*NOT_SCORED, REDACTED, REDACTED_NOT_SCORED, REDACTED_NOT_TRAINABLE)

AS_ZERO = "_as_zero"
"""What follows the reason, in `finish_reason`, of a failed attempt that counts as one of reward 0, since
`rollouts.failed: zero` says so. Such a trajectory is scored."""


class Ended(Protocol):
    """An attempt or a trajectory, as far as the question is concerned."""

    @property
    def finish_reason(self) -> str: ...


EndedT = TypeVar("EndedT", bound=Ended)


def is_scored(row: Ended) -> bool:
    """Whether a trajectory has a reward that was measured."""
    return reason_is_scored(row.finish_reason)


def reason_is_scored(finish_reason: str) -> bool:
    """The same by a trajectory's finish reason."""
    return finish_reason not in _WITHOUT_REWARD


def redacted_reason(finish_reason: str) -> str:
    """The finish reason of a trajectory once its user was forgotten."""
    if finish_reason in ALL_REDACTED:
        return finish_reason
    if finish_reason == NOT_TRAINABLE:
        return REDACTED_NOT_TRAINABLE
    return REDACTED_SCORED if reason_is_scored(finish_reason) else REDACTED_NOT_SCORED


def scored(rows: Iterable[EndedT]) -> list[EndedT]:
    """The trajectories that were scored, in their order."""
    return [row for row in rows if is_scored(row)]


def was_scored() -> pl.Expr:
    """The same as a condition on frames of trajectories; it reads the column `finish_reason`."""
    import polars as pl  # planning does not import it

    return ~pl.col("finish_reason").is_in(_WITHOUT_REWARD)


def with_measured(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Trajectories whose `reward` and `success` are null where nothing was measured."""
    import polars as pl

    return rows.with_columns(
        reward=pl.when(was_scored()).then("reward"), success=pl.when(was_scored()).then("success")
    )
