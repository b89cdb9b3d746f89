from typing import Any

import pytest

from erl_pipeline.environments.tool_calls.schemas import schemas_of, typed
from storage.texts import StorableTexts


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, "null", "null"),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, " -7\n", -7),
        ({"type": "integer"}, "seven", "seven"),
        ({"type": "integer"}, "true", "true"),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "number"}, "1e999", "1e999"),
        # As the templates write them, and as models do.
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "null"}, "None", None),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "integer"]}, "7", 7),
        ({"type": ["string", "integer"]}, '"7"', '"7"'),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "object"}, "{'a': 1}", "{'a': 1}"),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"$ref": "#/$defs/Place"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/Colour"}, "7", "7"),
        ({"$ref": "#/$defs/Circle"}, "7", 7),
        ({"$ref": "#/$defs/Nothing"}, "7", "7"),
        ({"$ref": "http://elsewhere"}, "7", "7"),
        # What no schema describes stays a text.
        ({}, "7", "7"),
        ("any", "7", "7"),
        ({"type": 7, "anyOf": 7}, "7", "7"),
    ],
)
def test_a_value_has_a_type_of_its_schema_or_stays_a_text(schema: Any, text: str, value: Any) -> None:
    definitions = {
        "Place": {"type": "object"},
        "Colour": {"enum": ["7", "red"]},
        "Circle": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"type": "integer"}]},
    }
    parameters = {"properties": {"a": schema}, "$defs": definitions}
    tools: Any = [{"function": {"name": "add", "parameters": parameters}}]
    read = typed(text, schemas_of(tools, "add").get("a"), StorableTexts())
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "function",
    [
        {"name": "other"},
        {"name": "add"},
        {"name": "add", "parameters": []},
        {"name": "add", "parameters": {"properties": []}},
    ],
)
def test_a_tool_without_a_schema_describes_no_value(function: Any) -> None:
    assert schemas_of([{"function": function}], "add") == {}
