"""The first row, column and token in which two Parquet files differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from erl_pipeline.evaluation.divergence.difference import ContentDifference

_DERIVED = ("seed", "tokenizer_digest", "embedding_model", "vector")
"""Columns that are derived from others or from the recipe alone, besides ids and versions."""
_PLACE = ("iteration", "task_id", "sample_index", "role", "revision_index", "entry_id", "kind")
_SHOWN = 120


def first_row_difference(a: Path, b: Path, file: str) -> ContentDifference | None:
    """The first difference between two files of one table, row by row; None if there is none.

    Derived columns do not count: ids, seeds, and versions of policy and memory follow from recipes, so they
    differ as soon as anything before them did.
    """
    ours, theirs = (pl.scan_parquet(path, glob=False) for path in (a, b))
    columns = [name for name in ours.collect_schema().names() if not _is_derived(name)]
    other = theirs.collect_schema().names()
    columns = [name for name in columns if name in other]
    left, right = (frame.select(columns).collect() for frame in (ours, theirs))
    rows = min(left.height, right.height)
    first = rows
    # One column after the other, so that only one comparison is in memory at a time.
    for name in columns:
        same = left[name].head(rows).eq_missing(right[name].head(rows))
        differing = (~same).arg_true()
        if len(differing):
            first = min(first, int(differing[0]))
    if first < rows:
        return _of_row(left.row(first, named=True), right.row(first, named=True), first, file)
    if left.height != right.height:
        longer = left if left.height > right.height else right
        place = {name: value for name, value in longer.row(first, named=True).items() if name in _PLACE}
        return ContentDifference(
            file,
            "row",
            "a row that the other lacks",
            f"{left.height} rows",
            f"{right.height} rows",
            row=first,
            place=place,
        )
    return None


def _of_row(ours: dict[str, Any], theirs: dict[str, Any], number: int, file: str) -> ContentDifference:
    place = {name: value for name, value in ours.items() if name in _PLACE}
    column = next(name for name in ours if ours[name] != theirs[name])
    left, right = ours[column], theirs[column]
    token = _token(left, right)
    if token is not None:
        left, right = (each[token] if token < len(each) else "the end" for each in (left, right))
    return ContentDifference(
        file,
        "row",
        f"column {column}" if token is None else f"token {token} of {column}",
        _shown(left),
        _shown(right),
        row=number,
        place=place,
        column=column,
        token=token,
    )


def _token(ours: Any, theirs: Any) -> int | None:
    """The first position at which two lists differ; None if one of the values is not a list."""
    if not (isinstance(ours, list) and isinstance(theirs, list)):
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(ours), len(theirs)))


def _is_derived(name: str) -> bool:
    is_id = name.endswith(("_id", "_ids", "_version")) and not name.endswith("_token_ids")
    return name in _DERIVED or (is_id and name != "task_id")


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
