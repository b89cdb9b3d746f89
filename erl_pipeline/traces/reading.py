"""Reading a file of traces, line by line, in any of the formats."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.traces import langfuse, openai, openinference, otel, otlp
from erl_pipeline.traces.calls import Call, Refused, Score, parsed
from storage.errors import InputError, store_errors
from storage.tables.row_links import Problems, shown
from storage.texts import counted

Format = Literal["otel", "openinference", "langfuse", "openai"]


@dataclass(frozen=True)
class _Reader:
    mapping: int
    """Version of how the format's fields are read."""
    parts: Callable[[Any], Iterator[tuple[str, Any]]]
    read: Callable[[Any, str], Iterator[Call | Score]]


def _whole_line(record: Any) -> Iterator[tuple[str, Any]]:
    yield "", record


_READERS: dict[Format, _Reader] = {
    "otel": _Reader(otel.MAPPING, otlp.unread_spans, otel.read),
    "openinference": _Reader(openinference.MAPPING, openinference.parts, openinference.read),
    "langfuse": _Reader(langfuse.MAPPING, _whole_line, langfuse.read),
    "openai": _Reader(openai.MAPPING, _whole_line, openai.read),
}


class MalformedTraces(InputError):
    """A file of traces cannot be read, or has lines that are refused."""


@dataclass
class Traces:
    """What a file of traces holds. `refused` counts lines and spans, `others` spans that call no model."""

    calls: list[Call] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    others: int = 0
    problems: Problems = field(default_factory=Problems)

    @property
    def refused(self) -> int:
        """How many lines and spans are left out."""
        return self.problems.count


def source_system(name: Format) -> str:
    """The format with the version of its mapping, such as `otel/1`."""
    return f"{name}/{_READERS[name].mapping}"


def read_traces(path: Path, name: Format, source_model: str, *, skip_bad: bool) -> Traces:
    """The calls and scores of a file: JSON lines, or one JSON document where its name ends in `.json`.

    Raises MalformedTraces, which names line and field of the first of them, if something is refused and not
    `skip_bad`, and for a file without calls.
    """
    reader, found = _READERS[name], Traces()
    for place, text in _texts(path):
        try:
            parts = list(reader.parts(parsed(_decoded(text), "record")))
        except Refused as error:
            found.problems.add(f"{place}: {error}")
            continue
        for within, part in parts:
            here = f"{place}, {within}" if within else place
            try:
                read = list(reader.read(part, place))
                _require_model(read, source_model)
            except Refused as error:
                found.problems.add(f"{here}: {error}")
                continue
            found.calls += [each for each in read if isinstance(each, Call)]
            found.scores += [each for each in read if isinstance(each, Score)]
            found.others += not read
    if found.refused and not skip_bad:
        raise MalformedTraces(_message(path, found.problems))
    if not found.calls:
        raise MalformedTraces(f"{path}: it holds no calls of a model in the format {name} that can be used")
    return found


def _texts(path: Path) -> Iterator[tuple[str, bytes]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    with store_errors("read", path):
        if path.suffix == ".json":
            yield "the document", path.read_bytes()
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"line {number}", line


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("record", f"is not UTF-8 at byte {error.start + 1}") from error


def _require_model(read: Iterable[Call | Score], source_model: str) -> None:
    """Raise Refused for a call of a model that is not `source_model`, or a version of it."""
    for each in read:
        named = each.model if isinstance(each, Call) else None
        if named not in (None, source_model) and not str(named).startswith(
            tuple(source_model + mark for mark in "-.:@")
        ):
            raise Refused("model", f"is {shown(named)}, and --source-model is {shown(source_model)}")


def _message(path: Path, problems: Problems) -> str:
    more = problems.count - len(problems.shown)
    lines = [
        f"{path}: {counted(problems.count, 'line or span is', 'lines or spans are')} refused",
        *problems.shown,
        *([f"and {more:,} more"] if more else []),
        "--skip-bad leaves them out; docs/traces.md says what is refused",
    ]
    return "\n  ".join(lines)
