"""Reading YAML strictly: only plain values, no duplicate keys, and the line of every key is kept."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from storage.errors import ConfigError

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
