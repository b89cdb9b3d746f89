"""The values of arguments that are written as text, by the JSON schemas of their tool."""

from collections.abc import Mapping
from typing import Any

from erl_pipeline.environments.tool_calls.form import Tools
from storage.texts import StorableTexts, read_json

_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
Types = frozenset[str]
"""What a value may be, as JSON schemas name it."""


def schemas_of(tools: Tools, name: str) -> dict[str, Types]:
    """What each argument of a tool may be; empty for an unknown tool."""
    for tool in tools:
        if tool["function"]["name"] == name:
            parameters = tool["function"].get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            if isinstance(properties, Mapping):
                return {key: _types(schema, parameters, set()) for key, schema in properties.items()}
    return {}


def typed(text: str, types: Types | None, texts: StorableTexts) -> Any:
    """The value that a text is meant as. What no schema describes, and what does not fit, stays a text:
    whether a tool takes it is for the environment to say."""
    if not types or types == {"string"}:
        return text
    # The templates write such values as Python does, and the models as JSON.
    word = text.strip().lower()
    if "boolean" in types and word in ("true", "false"):
        return word == "true"
    if "null" in types and word in ("null", "none"):
        return None
    try:
        value = texts.value(read_json(text))
    except ValueError:
        return text
    kind = _TYPES[type(value)]
    fits = kind in types or (kind == "integer" and "number" in types)
    return value if fits and kind != "string" else text


def _types(schema: Any, root: Any, seen: set[str]) -> Types:
    """Empty where a schema allows any value. `seen`: references that were followed, which may go in
    circles."""
    if not isinstance(schema, Mapping):
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        return _types(_pointed_at(root, reference), root, seen)
    named = schema.get("type")
    found = {each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)}
    allowed = schema.get("enum")
    if not found and isinstance(allowed, list):
        found = {_TYPES[type(each)] for each in allowed if type(each) in _TYPES}
    for choices in ("anyOf", "oneOf", "allOf"):
        each_of = schema.get(choices)
        for each in each_of if isinstance(each_of, list) else ():
            found |= _types(each, root, seen)
    return frozenset(found)


def _pointed_at(root: Any, reference: str) -> Any:
    """What a reference within a schema, as `#/$defs/Place`, points at; None for any other."""
    first, *names = reference.split("/")
    place = root if first == "#" else None
    for name in names:
        place = place.get(name) if isinstance(place, Mapping) else None
    return place
