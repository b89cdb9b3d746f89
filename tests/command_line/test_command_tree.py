"""What all commands have in common: their help, their options, and the names of the options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line.main import command_tree
from tests.command_line.invoke import invoke

WITHOUT_JSON = {"serve", "serve-policy", "trainer-node", "ui", "env play"}
"""Commands that are interactive until the user leaves them."""
WITHOUT_STORE = {
    *("serve", "trainer-node", "plugins", "config show", "config check"),
    *("env list", "env show", "env try", "env play", "env new"),
}
"""Commands that read no store."""
WORDS = {
    "--name": "NAME",
    "--run": "RUN",
    "--config": "CONFIG",
    "--checkpoint": "ID|latest|iteration:N",
    "--iterations": "N",
    "--set": "KEY=VALUE",
    "--store": "URI",
}
"""Options with the same meaning in all commands, and how the help shows their values."""


def commands(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


COMMANDS = dict(commands(command_tree()))


def options(command: Any) -> dict[str, Any]:
    return {option: parameter for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_options_of_all(name: str) -> None:
    found = options(COMMANDS[name])
    assert ("--json" in found) == (name not in WITHOUT_JSON)
    assert ("--store" in found) == (name not in WITHOUT_STORE)
    assert COMMANDS[name].help
    for parameter in COMMANDS[name].params:
        assert parameter.help, f"{name}: {parameter.name} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_has_one_name_and_one_meaning(name: str) -> None:
    for option, parameter in options(COMMANDS[name]).items():
        assert not option.startswith("-") or option.startswith("--"), f"{name} has a short option {option}"
        if option in WORDS:
            assert parameter.metavar == WORDS[option], f"{name} {option}"
    unused = {"-o", "--config-file"} if name == "import traces" else {"--as", "-o", "--config-file"}
    assert not options(COMMANDS[name]).keys() & unused


@pytest.mark.parametrize("words", [[], ["status"], ["memory"], ["memory", "list"], ["schedule"]])
def test_help_has_a_short_form(words: list[str]) -> None:
    short, long = invoke(*words, "-h"), invoke(*words, "--help")
    assert (short.status, short.output) == (0, long.output)
    assert "Usage: erl-pipeline" in short.output


def test_commands_that_the_page_suggests_have_the_options_that_it_names() -> None:
    folder = Path(__file__).parents[2] / "command_line" / "ui"
    named = {
        node.value
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--")
    }
    assert {"--iteration", "--tasks", "--checkpoint"} <= named
    assert named <= {option for command in COMMANDS.values() for option in options(command)}
