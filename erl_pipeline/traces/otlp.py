"""Spans and log records of OTLP JSON: a line, or a file, is an export request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from erl_pipeline.traces.calls import Envelope, Refused, checked


class _Otlp(Envelope):
    # OTLP's own JSON has lowerCamelCase names; protobuf's printers can also keep the names with underscores.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class _Value(_Otlp):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | None = None
    double_value: float | None = None
    array_value: _Array | None = None
    kvlist_value: _Pairs | None = None

    def plain(self) -> Any:
        """The value as JSON has it; None for bytes."""
        if self.array_value is not None:
            return [each.plain() for each in self.array_value.values]
        if self.kvlist_value is not None:
            return plain(self.kvlist_value.values)
        given = (self.string_value, self.bool_value, self.int_value, self.double_value)
        return next((each for each in given if each is not None), None)


class Attribute(_Otlp):
    """A name and a value of any kind."""

    key: str
    value: _Value | None = None


class _Array(_Otlp):
    values: tuple[_Value, ...] = ()


class _Pairs(_Otlp):
    values: tuple[Attribute, ...] = ()


class Event(_Otlp):
    """Something that was said about a span."""

    name: str = ""
    attributes: tuple[Attribute, ...] = ()


class _Status(_Otlp):
    code: int | str = 0


class Span(_Otlp):
    """A span; or a log record about one, which has the name of its event."""

    trace_id: str = ""
    span_id: str = ""
    event_name: str = ""
    attributes: tuple[Attribute, ...] = ()
    events: tuple[Event, ...] = ()
    status: _Status = _Status()
    dropped_attributes_count: int = 0
    dropped_events_count: int = 0

    def require_whole(self) -> None:
        """Raise Refused where an exporter has dropped something, and where the call failed."""
        dropped = self.dropped_attributes_count + self.dropped_events_count
        if dropped:
            raise Refused("droppedAttributesCount", f"{dropped} of its attributes and events were dropped")
        if self.status.code in (2, "STATUS_CODE_ERROR"):
            raise Refused("status", "the call failed: the answer is missing")


class _Scope(_Otlp):
    schema_url: str = ""
    spans: tuple[Any, ...] = ()
    log_records: tuple[Any, ...] = ()


class _Resource(_Otlp):
    scope_spans: tuple[_Scope, ...] = ()
    scope_logs: tuple[_Scope, ...] = ()


class _Request(_Otlp):
    resource_spans: tuple[_Resource, ...] | None = None
    resource_logs: tuple[_Resource, ...] | None = None


def unread_spans(record: Any) -> Iterator[tuple[str, tuple[str, Any]]]:
    """The spans and log records of a request, with their places in it; each with the URL of the version of
    its conventions. Raises Refused for what is no request."""
    request = checked(_Request, record, "")
    if request.resource_spans is None and request.resource_logs is None:
        raise Refused("resourceSpans", "is missing; allowed is OTLP JSON")
    resources = [*(request.resource_spans or ()), *(request.resource_logs or ())]
    scopes = [scope for each in resources for scope in (*each.scope_spans, *each.scope_logs)]
    spans = [(scope.schema_url, span) for scope in scopes for span in (*scope.spans, *scope.log_records)]
    yield from ((f"span {number}", each) for number, each in enumerate(spans, start=1))


def plain(attributes: Sequence[Attribute]) -> dict[str, Any]:
    """Attributes by their names."""
    return {each.key: each.value.plain() for each in attributes if each.value is not None}
