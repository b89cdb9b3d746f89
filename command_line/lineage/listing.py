"""Shared parts of the commands of `erl-pipeline lineage`: arguments, and lists that are cut short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from command_line.output import print_line, print_table
from command_line.selectors import SELECTOR

Identifier = Annotated[
    str,
    typer.Argument(
        metavar=SELECTOR,
        help="Id of an artifact, trajectory, SFT row or memory entry, or its beginning; or the latest "
        "checkpoint, or an iteration's.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Lines to print; --json has all.")]

DEFAULT_LIMIT = 40
SHORT = 12
"""Characters of an artifact's id that are shown, enough to distinguish it."""


def print_first(
    rows: Sequence[Mapping[str, str]], total: int, left: Sequence[str], rest: str = "more"
) -> None:
    """Print the first rows of `total` as a table, and say how to get the others."""
    print_table(rows, left=left)
    if total > len(rows):
        print_line(f"{total - len(rows):,} {rest}: --limit {total}, or --json for all.")
