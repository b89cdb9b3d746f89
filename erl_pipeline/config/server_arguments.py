"""Options in the arguments of a vLLM server: `--name=value` in one item, or name and value in two."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_OF_DEVICES = ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp")
_OF_COPIES = ("--data-parallel-size", "-dp")


def option_name(argument: str) -> str:
    """The name of the option in an item; vLLM treats underscores as hyphens."""
    return argument.partition("=")[0].replace("_", "-")


def devices_of_server(arguments: Sequence[str]) -> int:
    """Devices that one copy of the model is spread over: tensor parallel times pipeline parallel.

    Raises ValueError for a size that is not a whole number above 0.
    """
    size = 1
    for name, value in _given(arguments, _OF_DEVICES):
        size *= _whole_number(name, value)
    return size


def copies_of_server(arguments: Sequence[str]) -> int:
    """Copies of the model that one server keeps: data parallel. Raises ValueError as above."""
    sizes = [_whole_number(name, value) for name, value in _given(arguments, _OF_COPIES)]
    return sizes[-1] if sizes else 1


def require_readable(arguments: Sequence[str]) -> None:
    """Raise ValueError for an option and its value in one item with a space, which vLLM does not know, and
    for a number of devices or copies that is no number."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if argument.startswith("-") and (space := re.search(r"\s", option)):
            name, value = option[: space.start()], option[space.end() :].strip()
            raise ValueError(f"{argument!r} is one item with a space; write {name}={value}, or two items")
    devices_of_server(arguments)
    copies_of_server(arguments)


def _given(arguments: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if option_name(name) in names:
            following = arguments[place + 1] if place + 1 < len(arguments) else ""
            yield name, value if equals else following


def _whole_number(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ValueError(f"{name}: {value!r}; allowed is a whole number above 0, as in {name}=2")
    return int(value)
