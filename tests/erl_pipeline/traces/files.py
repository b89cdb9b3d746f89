"""Files of traces, and what is read of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.environments.messages import Message
from erl_pipeline.traces.reading import Format, MalformedTraces, Traces, read_traces

USER, ANSWER = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}


def write(folder: Path, *records: Any) -> Path:
    """A file of JSON lines; a text is a line as it is."""
    path = folder / "traces.jsonl"
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(folder: Path, name: Format, *records: Any, model: str = "m") -> Traces:
    return read_traces(write(folder, *records), name, model, skip_bad=False)


def texts(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in messages]


def refuse(folder: Path, name: Format, record: Any, said: str) -> None:
    """Reading a file with this record in its second line is refused, with these words and the line."""
    good = {"messages": [USER, ANSWER]} if name == "openai" else record
    records = (good, record) if name == "openai" else (record,)
    with pytest.raises(MalformedTraces) as error:
        read(folder, name, *records)
    line = str(error.value).splitlines()[1].strip()
    assert line.startswith(f"line {len(records)}")
    assert said in line


def otlp(value: Any) -> dict[str, Any]:
    """A value as OTLP JSON has it."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp(each) for each in value]}}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": attributes(value)}}
    return {"stringValue": value}


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": otlp(value)} for key, value in values.items()]


def request(*spans: dict[str, Any], schema: str = "") -> dict[str, Any]:
    """An export request."""
    return {"resourceSpans": [{"scopeSpans": [{"schemaUrl": schema, "spans": list(spans)}]}]}


def span(span_id: str, values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"traceId": "t1", "spanId": span_id, "attributes": attributes(values), **more}
