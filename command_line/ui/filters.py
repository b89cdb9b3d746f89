"""Filters over the columns of rows, as in an address: `role=second_attempt&reward=>0.5&said=~left`."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import polars as pl

from storage.errors import InputError
from storage.tables.trajectories import says


class AddressError(InputError):
    """The query of an address means nothing, such as a filter of another form."""


Kind = Literal["text", "number", "integer", "flag", "list", "said"]

FILTERS: dict[str, Kind] = {
    "role": "text",
    "outcome": "text",
    "success": "flag",
    "reward": "number",
    "task_type": "text",
    "finish_reason": "text",
    "said": "said",
    "advantage": "number",
    "mismatch": "number",
    "entropy": "number",
    "mean_ratio": "number",
    "clipped_share": "number",
    "loss": "number",
    "weight": "number",
    "trained_tokens": "number",
    "tokens": "number",
    "task_id": "text",
    "group_id": "text",
    "subgroup": "text",
    "episode_id": "text",
    "trajectory_id": "text",
    "parent_trajectory_id": "text",
    "environment": "text",
    "policy_version": "text",
    "memory_version": "text",
    "memory_entry": "list",
    "feedback": "text",
    "truncated": "flag",
    "temperature": "number",
    "revision_index": "number",
    "sample_index": "number",
    "seed": "integer",
}
"""Columns by which rows can be filtered, the usual ones first."""

_OPERATORS = (">=", "<=", ">", "<", "=")
_INTEGER = re.compile(r"[0-9]{1,19}")
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Filter:
    """One column and the condition on it, as in the address."""

    column: str
    asked: str

    def condition(self) -> pl.Expr:
        """The filter for polars. Raises AddressError, which says what is allowed, for an invalid one."""
        kind = FILTERS[self.column]
        if kind == "said":
            return says(self.asked.removeprefix("~"))
        if kind == "list":
            return pl.col("memory_entry_ids").list.eval(pl.element().str.starts_with(self.asked)).list.any()
        if kind == "flag":
            return pl.col(self.column) == read_flag(self.column, self.asked)
        if kind == "integer":
            if not _INTEGER.fullmatch(self.asked) or int(self.asked) >= 2**63:
                raise AddressError(f"{self.column}={self.asked}: give a whole number.")
            return pl.col(self.column) == int(self.asked)
        return self._number() if kind == "number" else self._text()

    def _text(self) -> pl.Expr:
        column = pl.col(self.column)
        if self.asked.startswith("~"):
            return column.str.contains(self.asked[1:], literal=True)
        if self.asked.startswith("!"):
            return column.ne_missing(pl.lit(self.asked[1:]))
        return column == self.asked

    def _number(self) -> pl.Expr:
        asked = self.asked.strip()
        operator = next((each for each in _OPERATORS if asked.startswith(each)), "")
        low, dots, high = asked.removeprefix(operator).partition("..")
        bounds = [finite(end) for end in ((low, high) if dots else (low,))]
        if None in bounds or (operator and dots):
            raise AddressError(
                f"{self.column}={self.asked}: give a number, such as 0.5, >0.5, <=0.5, or a range, 0.1..0.5."
            )
        # Rewards and training figures are stored in 32 bits; compared in 32 bits, `0.1` finds 0.1.
        column = pl.col(self.column).cast(pl.Float32)
        first = pl.lit(bounds[0], pl.Float32)
        if len(bounds) == 2:
            return column.is_between(first, pl.lit(bounds[1], pl.Float32))
        return {">": column > first, ">=": column >= first, "<": column < first, "<=": column <= first}.get(
            operator, column == first
        )


def read_flag(name: str, asked: str) -> bool:
    """A yes or no of an address. Raises AddressError, which says what is allowed, for anything else."""
    if asked.lower() not in (*_YES, *_NO):
        raise AddressError(f"{name}={asked}: give true or false.")
    return asked.lower() in _YES


def read_filters(given: Iterable[tuple[str, str]]) -> list[Filter]:
    """The filters among an address's parameters; empty ones, which forms send, are ignored."""
    return [Filter(name, value) for name, value in given if name in FILTERS and value != ""]


def finite(text: str) -> float | None:
    """The number in a text; None for anything else, and for one that is not finite."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
