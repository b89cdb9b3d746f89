"""The log of a run: its last lines, from a level on."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from command_line.ui.pages import ARunVisit
from erl_pipeline.runs.log import log_file

router = APIRouter(prefix="/runs/{name}")

Level = Literal["debug", "info", "warning", "error"]
LogName = Literal["run.log", "prefect.log", "workers.log"]
MOST_LINES = 500
_MOST_BYTES = 1_000_000
"""Bytes at the end of a file that are read."""
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_NEAR_THE_BEGINNING = 60
"""Characters of a line among which its level stands."""


@dataclass(frozen=True)
class LogLine:
    """A line of a log. One that names no level has that of the line before."""

    level: Level
    text: str


def read_lines(text: str, level: Level) -> list[LogLine]:
    """The last lines of a log that are of a level or a graver one."""
    levels = get_args(Level)
    known: Level = "info"
    lines = []
    for line in text.splitlines():
        if found := _LEVEL.search(line[:_NEAR_THE_BEGINNING]):
            known = {"CRITICAL": "error"}.get(found[1], found[1].lower())  # type: ignore[assignment]
        if levels.index(known) >= levels.index(level):
            lines.append(LogLine(known, line))
    return lines[-MOST_LINES:]


def read_tail(file: Path, most: int = _MOST_BYTES) -> str:
    """The last bytes of a log, at most `most`, and of those that were put aside before it where the log is
    short; whole lines."""
    text = ""
    for each in (file, *(file.with_name(f"{file.name}.{aside}") for aside in (1, 2))):
        if most > 0 and (found := _end(each, most)):
            text, most = found + text, most - each.stat().st_size
    return text


def _end(file: Path, most: int) -> str:
    # A store from elsewhere could have a link to any file of this machine.
    if file.is_symlink() or not file.is_file():
        return ""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - most))
        content = opened.read(most).decode("utf-8", "replace")
    return content if size <= most else content.partition("\n")[2]


@router.get("/log")
def log(here: ARunVisit, file: LogName = "run.log", level: Level = "debug") -> HTMLResponse:
    """The last lines of a run's log, or of a log that Prefect or the processes of workers wrote."""
    run, stored = here.run, here.stored
    paths = {name: log_file(stored.uri, run.name, name) for name in get_args(LogName)}
    existing: Sequence[str] = [name for name, path in paths.items() if path.is_file()]
    return here.page(
        "log.html.j2",
        "Log",
        [here.crumb("log", "log")],
        lines=read_lines(read_tail(paths[file]), level),
        file=file,
        files=existing or [file],
        level=level,
        levels=get_args(Level),
        most=MOST_LINES,
        exists=file in existing,
        path=str(paths[file]),
    )
