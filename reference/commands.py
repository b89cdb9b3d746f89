"""The page of all commands, from the program's own tree of commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from command_line.main import command_tree
from reference.markdown import code, plain, table

_PROGRAM = "erl-pipeline"
_VALUE_NAMES = {int: "N", float: "X", Path: "PATH"}
"""What stands for the value of an option in its usage line, by its type."""


@dataclass(frozen=True)
class Command:
    """A command without subcommands: the words that call it, and typer's object for it."""

    words: tuple[str, ...]
    command: Any

    @property
    def options(self) -> Mapping[str, Any]:
        """Its options, by each of their names."""
        return {
            word: parameter
            for parameter in self.command.params
            if parameter.param_type_name == "option"
            for word in (*parameter.opts, *parameter.secondary_opts)
        }

    @property
    def arguments(self) -> Sequence[Any]:
        """Its arguments, in order."""
        return [each for each in self.command.params if each.param_type_name == "argument"]


@lru_cache(maxsize=1)
def root() -> Any:
    """Typer's object for the whole program."""
    return command_tree()


def commands() -> list[Command]:
    """All commands that are not hidden, in the order of the program's own help."""
    return list(_below((), root()))


def _below(words: tuple[str, ...], command: Any) -> Iterator[Command]:
    if not hasattr(command, "commands"):
        yield Command(words, command)
        return
    for name, child in command.commands.items():
        if not child.hidden:
            yield from _below((*words, name), child)


def commands_text() -> str:
    """The page without its introduction, in Markdown."""
    parts = [_overview()]
    for command in commands():
        parts.append(_section(command))
    return "\n".join(parts)


def _overview() -> str:
    rows = (
        (f"[{code(' '.join(each.words))}](#{'-'.join(each.words)})", _first_sentence(each.command.help))
        for each in commands()
    )
    return table(("command", "what it does"), rows)


def _first_sentence(text: str) -> str:
    return plain(text.split("\n\n")[0].split("\f")[0])


def _section(command: Command) -> str:
    name = " ".join(command.words)
    usage = " ".join([_PROGRAM, name, *map(_usage, command.arguments), "[OPTIONS]"])
    lines = [f"## {code(name)} {{ #{'-'.join(command.words)} }}", "", f"```text\n{usage}\n```", ""]
    paragraphs = (command.command.help or "").split("\f")[0].split("\n\n")
    lines += ["\n\n".join(plain(each) for each in paragraphs), ""]
    rows = [(code(_usage(each)), "", plain(each.help or "")) for each in command.arguments]
    options = [
        each for each in command.command.params if each.param_type_name == "option" and not each.hidden
    ]
    rows += [(_names(each), _default(each), plain(each.help or "")) for each in options]
    return "\n".join([*lines, table(("argument or option", "default", "what it does"), rows)])


def _usage(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    return shown if argument.required else f"[{shown}]"


def _names(option: Any) -> str:
    names = ", ".join(code(each) for each in (*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {code(_values(option))}"


def _values(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    return "|".join(values_of(option)) or _VALUE_NAMES.get(option.type_descriptor.annotation, "TEXT")


def values_of(option: Any) -> list[str]:
    """The values that an option allows; empty if any value is allowed."""
    return _choices(option.type_descriptor.annotation)


def _choices(annotation: Any) -> list[str]:
    """The values of a Literal, even of one that may be None."""
    if get_origin(annotation) is Literal:
        return list(map(str, get_args(annotation)))
    return [choice for each in get_args(annotation) for choice in _choices(each)]


def _default(option: Any) -> str:
    if option.required:
        return "must be given"
    if option.is_flag or option.default is None or callable(option.default):
        return ""
    return code(str(option.default)) if str(option.default) else ""
