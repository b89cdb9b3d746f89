"""Printing results: JSON for programs, tables and command lines for people."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from command_line.options import store_without_option
from erl_pipeline.views.report.texts import bytes_text as bytes_text
from erl_pipeline.views.report.texts import seconds_text as seconds_text
from erl_pipeline.views.report.texts import visible
from storage.texts import counted as counted
from storage.texts import storable

if TYPE_CHECKING:
    from rich.console import Console


def command(words: Sequence[str], store: str | None = None) -> str:
    """A command line of this program, quoted for a shell; with --store unless it takes that store anyway."""
    words = [*words, *([] if store in (None, store_without_option()) else ["--store", store])]
    called = sys.argv[0]
    name = Path(called).name
    found = shutil.which(name)
    by_name = called == name or (found is not None and Path(found).samefile(called))
    return shlex.join([name if by_name else called, *words])


_FILE_COLUMNS = 200
_NARROWEST = 16
"""Columns of a terminal in which a text can be read."""


def print_json(value: Any) -> None:
    """Print one JSON document on standard output; in ASCII where that cannot hold all characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    ascii_only = not encoding.lower().startswith("utf")
    print_document(json.dumps(value, indent=2, ensure_ascii=ascii_only, allow_nan=False))


def print_document(text: str) -> None:
    """Print a text for programs, such as YAML, on standard output, as it is."""
    sys.stdout.write(storable(text) + "\n")


def print_line(text: str = "") -> None:
    """Print text on standard output, without any formatting. Tabs and line breaks stay; other control
    characters are shown as symbols, since what a policy or a user said must not steer the terminal."""
    print_document(_shown(text))


def _shown(text: str) -> str:
    return str(visible(storable(text)))


def one_line(text: str | None, between: str = " ") -> str:
    """A text on one line, cut after 60 characters; the lines that it had are joined by `between`."""
    line = between.join(" ".join(each.split()) for each in (text or "").splitlines() if each.strip())
    return line if len(line) <= 60 else f"{line[:57]}..."


def print_table(rows: Sequence[Mapping[str, str]], left: Sequence[str] = ()) -> None:
    """Print rows with the same columns as a table; columns in `left` are text, the others numbers. Where the
    terminal is too narrow for texts beside each other, each row is a paragraph; a table of numbers is then
    printed as several."""
    if not rows:
        return
    console = wide_console()
    if not left and len(rows[0]) > 2 and _width(rows, list(rows[0])) > console.width:
        key, *others = rows[0]
        print_wide_table(rows, key, [[heading] for heading in others])
        return
    if left and _width(rows, list(rows[0]), dict.fromkeys(left, _NARROWEST)) > console.width:
        for row in rows:
            first, *others = row
            print_line(
                f"{row[first]}\n  " + "; ".join(f"{each}: {row[each]}" for each in others if row[each])
            )
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for heading in rows[0]:
        table.add_column(
            heading,
            justify="left" if heading in left else "right",
            no_wrap=heading not in left,
            overflow="fold" if heading in left else "ellipsis",  # a number is never cut without a mark
        )
    for row in rows:
        table.add_row(*map(_shown, row.values()))
    console.print(table)


def print_wide_table(rows: Sequence[Mapping[str, str]], key: str, groups: Sequence[Sequence[str]]) -> None:
    """Print rows of numbers as one table, or as several below one another if the terminal is too narrow.

    Every table begins with the column `key`; the columns of a group stay together. Columns without any cell
    are left out.
    """
    room = wide_console().width
    tables: list[list[str]] = []
    for group in groups:
        filled = [heading for heading in group if any(row[heading] for row in rows)]
        if not filled:
            continue
        if tables and _width(rows, [key, *tables[-1], *filled]) <= room:
            tables[-1] += filled
        else:
            tables.append(filled)
    for headings in tables:
        print_table([{heading: row[heading] for heading in (key, *headings)} for row in rows])


def _width(
    rows: Sequence[Mapping[str, str]], headings: Sequence[str], most: Mapping[str, int] | None = None
) -> int:
    """Columns of a terminal that a table takes: its cells, one between them and one at either end; of the
    columns in `most` at most so many."""
    cells = {heading: max(len(heading), *(len(row[heading]) for row in rows)) for heading in headings}
    return sum(min(cells[each], (most or {}).get(each, cells[each])) for each in headings) + len(headings) + 1


def wide_console() -> Console:
    """A console on standard output for tables and trees: as wide as the terminal, or 200 columns in a pipe or
    file."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _FILE_COLUMNS
    return console
