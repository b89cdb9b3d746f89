"""Explaining what is wrong with a configuration: the key as the user wrote it, the value, what is allowed."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from erl_pipeline.config.base import Settings, switch
from storage.errors import ConfigError
from storage.texts import counted

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "on or off",
    "string": "text",
    "model": "a group of settings, `key: value`",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True)
class _Place:
    """Where an error is. `path` is its key path, `holder` the group of settings that the last key belongs to,
    and `group` the group that this key names. `choices` are the groups to choose from by `type`; `switched`
    says whether the group can be off."""

    path: KeyPath
    holder: type[Settings] | None
    group: type[Settings] | None
    choices: Mapping[str, type[Settings]]
    switched: bool = False


def explain(error: ValidationError, model: type[Settings], origins: Mapping[KeyPath, str]) -> list[str]:
    """One line for each problem, in the order of the settings.

    Args:
        error: what validation as `model` raised.
        origins: where each key was set, such as `line 12`.
    """
    return [_line(details, _locate(details["loc"], model), origins) for details in error.errors()]


def _line(details: ErrorDetails, place: _Place, origins: Mapping[KeyPath, str]) -> str:
    path, text = _problem(details, place)
    origin = next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), "")
    return ": ".join(part for part in (origin, ".".join(path), text) if part)


def _problem(details: ErrorDetails, place: _Place) -> tuple[KeyPath, str]:
    """The key that is wrong, and what is wrong with it."""
    kind, message, context = details["type"], details["msg"], details.get("ctx", {})
    given = shorten(details["input"])
    subject = kind.partition("_")[0]
    if kind == "extra_forbidden":
        return place.path, f"unknown key; {_known_keys(place)}"
    if kind == "missing":
        return place.path, "missing; it must be set"
    if kind == "value_error":
        return _own_message(message.removeprefix("Value error, "), place)
    if kind == "union_tag_not_found":
        return (*place.path, "type"), f"missing; allowed: {', '.join(place.choices)}{_installed(place.path)}"
    if kind == "union_tag_invalid":
        allowed = ", ".join(place.choices) + _installed(place.path)
        return (*place.path, "type"), f"{shorten(context['tag'])}; allowed: {allowed}"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return place.path, f"{given}; allowed: {words} {context[bound]}"
    if kind == "finite_number":
        return place.path, f"{given}; allowed: a finite number"
    if kind == "int_parsing_size":
        return place.path, f"{given}; the number is too large"
    if kind in ("too_long", "too_short"):
        words, bound = ("at most", "max_length") if kind == "too_long" else ("at least", "min_length")
        return place.path, f"{given}; allowed: a list of {words} {counted(context[bound], 'value')}"
    if kind == "literal_error":
        allowed = context["expected"].replace(" or ", ", ").replace("'", "")
        if place.path[1:] == ("type",):
            allowed += _installed(place.path[:1])
        return place.path, f"{given}; allowed: {allowed}"
    if kind == "string_pattern_mismatch":
        return place.path, f"{given}; allowed: text that matches {context['pattern']}"
    if subject == "model" and place.switched:
        return place.path, f"{given}; allowed: on, off, and {_KINDS['model']}"
    if kind.endswith(("_type", "_parsing", "_from_float")) and subject in _KINDS:
        return place.path, f"{given}; allowed: {_KINDS[subject]}"
    return place.path, f"{given}; {message[:1].lower()}{message[1:]}"


def _locate(loc: Sequence[int | str], model: type[Settings]) -> _Place:
    """Find the place of pydantic's location, which also holds the `type` of each group chosen by type."""
    path: list[str] = []
    holder: type[Settings] | None = None
    group: type[Settings] | None = model
    choices: Mapping[str, type[Settings]] = {}
    named = switched = False
    for part in loc:
        if part in choices:
            group, choices = choices[str(part)], {}
            continue
        path.append(str(part))
        if named:
            # This part is a name in a mapping, such as a role; its group is known already.
            holder, named = None, False
            continue
        holder, group, choices = group, None, {}
        field = holder.model_fields.get(str(part)) if holder else None
        groups = _groups(field.annotation) if field else []
        switched = field is not None and any(getattr(each, "func", None) is switch for each in field.metadata)
        named = field is not None and get_origin(field.annotation) is dict
        if len(groups) == 1:
            group = groups[0]
        else:
            choices = {get_args(each.model_fields["type"].annotation)[0]: each for each in groups}
    return _Place(tuple(path), holder, group, choices, switched)


def _groups(annotation: Any) -> list[type[Settings]]:
    """The groups of settings in a type such as `A | B | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [annotation]
    return [group for argument in get_args(annotation) for group in _groups(argument)]


def _installed(path: KeyPath) -> str:
    """A hint for messages about a group of settings that plug-ins define; empty for other groups."""
    plugged = path in (("environment",), ("method",), ("trainer",), ("runner",))
    return " (`erl-pipeline plugins` lists what is installed)" if plugged else ""


def _known_keys(place: _Place) -> str:
    known = list(place.holder.model_fields) if place.holder else []
    close = difflib.get_close_matches(place.path[-1], known, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed: {', '.join(known)}"


def _own_message(message: str, place: _Place) -> tuple[KeyPath, str]:
    """The key and text of a message of our own validators. If the message begins with the key of a setting,
    this is the setting's full path."""
    key, colon, rest = message.partition(": ")
    fields = place.group.model_fields if place.group else {}
    if colon and not fields and place.path[-1:] == (key,):
        return place.path, rest
    if colon and key.partition(".")[0] in fields:
        return (*place.path, *key.split(".")), rest
    return place.path, message


KeyPath = tuple[str, ...]

_TRUE, _FALSE = {"yes", "true", "on"}, {"no", "false", "off"}
_NUMBER_START = re.compile(r"[+-]?\.?[0-9]")


@dataclass(frozen=True)
class YamlDocument:
    """The value of a YAML text, and the line number (from 1) of each key."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without aliases, with which a short text could expand without end."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            event = yaml.SafeLoader.peek_event(self)
            raise yaml.composer.ComposerError(None, None, "aliases are not supported", event.start_mark)
        return super().compose_node(parent, index)


def shorten(value: Any) -> str:
    """A value as messages show it, on one line."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def parse_yaml(text: str, source: str) -> YamlDocument:
    """Parse one YAML document of mappings, lists, text, numbers, booleans and nulls.

    Args:
        text: the YAML text.
        source: its name in errors, such as a file name.

    Raises:
        ConfigError: the text is not YAML, or has a duplicate key or a value that is not plain; names the
            line.
    """
    lines: dict[KeyPath, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        return YamlDocument(None if node is None else _value(node, (), lines, source), lines)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{source}{line}: not YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            f"{source}: not YAML: character {error.character!r} at position {error.position}: {error.reason}"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error


def _value(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], source: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines, source)
    if isinstance(node, yaml.SequenceNode):
        return [_value(child, path, lines, source) for child in node.value]
    assert isinstance(node, yaml.ScalarNode)
    return _scalar(node, source)


def _mapping(node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int], source: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError(f"{source} line {line}: a key must be a word, not a list or a mapping")
        key = key_node.value
        if key in values:
            raise ConfigError(
                f"{source} line {line}: {'.'.join((*path, key))} is set twice "
                f"(first on line {lines[(*path, key)]}); keep one"
            )
        lines[(*path, key)] = line
        values[key] = _value(value_node, (*path, key), lines, source)
    return values


def _scalar(node: yaml.ScalarNode, source: str) -> Any:
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    text: str = node.value
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if kind in ("int", "float") or (kind == "str" and node.style is None):
        number = _number(text)
        if number is not None and math.isfinite(number):
            return number
    if kind == "str":
        return text
    raise ConfigError(
        f"{source} line {node.start_mark.line + 1}: {shorten(text)} is read as YAML's {kind}; "
        "allowed are text (quote it), finite numbers, on, off and null"
    )


def _number(text: str) -> int | float | None:
    """The number that people and JSON mean by `text`, such as 3e-4 (which is text in YAML 1.1); None if it is
    not a number."""
    if not _NUMBER_START.match(text):
        return None
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return None
