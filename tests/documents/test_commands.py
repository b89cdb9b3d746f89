"""Commands in documents exist, with the options, values and settings that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from erl_pipeline.config.loading import load_config
from reference.commands import root, values_of
from storage.errors import ConfigError
from tests.documents.pages import ROOT, Command, command_words, pages

COMMANDS = [command for page in pages() for command in page.commands()]
_IMPLIED = {"schedule": "add"}
"""Groups whose own name can be used for one of their commands."""
_OTHER_FILES = ("configs/comparisons/", "configs/clusters/")
_TAKES_SETTINGS = ("train", "plan", "config")


def problems(command: Command) -> list[str]:
    """What is wrong with a call: an unknown command, option or value, or a missing argument."""
    found: Any = root()
    words = list(command.words)
    path = []
    while hasattr(found, "commands"):
        if words and words[0].startswith("-"):
            return _wrong_words(found, words, whole=False)
        if words and words[0] in found.commands:
            path.append(words[0])
            found = found.commands[words.pop(0)]
        elif path and path[-1] in _IMPLIED and words:
            found = found.commands[_IMPLIED[path[-1]]]
        else:
            unknown = words and not words[0].isupper()  # `erl-pipeline COMMAND` stands for any
            return [f"no command {words[0]}"] if unknown or command.whole else []
    return _wrong_words(found, words, command.whole)


def _wrong_words(found: Any, words: Sequence[str], whole: bool) -> list[str]:
    options = {
        word: each
        for each in found.params
        for word in (*each.opts, *each.secondary_opts)
        if word.startswith("-")
    }
    arguments = [each for each in found.params if each.param_type_name == "argument"]
    wrong, given, rest = [], 0, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word.startswith("-0"):
            given += 1
            continue
        name, equals, value = word.partition("=")
        if name in ("--help", "-h"):
            return []
        if name not in options:
            wrong.append(f"no option {name}")
            continue
        if options[name].is_flag:
            continue
        if not equals and not rest and whole:
            wrong.append(f"{name} needs a value")
        value = value if equals else rest.pop(0) if rest else ""
        allowed = values_of(options[name])
        if allowed and value and not set(value.split("|")) <= set(allowed):
            wrong.append(f"{name} {value}; allowed: {', '.join(allowed)}")
    needed = sum(each.required for each in arguments)
    if whole and not needed <= given <= len(arguments):
        wrong.append(f"{given} arguments, where it takes {needed} to {len(arguments)}")
    return wrong


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_exist(command: Command) -> None:
    assert not problems(command)


def test_what_is_wrong_with_a_command_is_found() -> None:
    def wrong(line: str, *, whole: bool = True) -> list[str]:
        return problems(Command("page", command_words(f"erl-pipeline {line}"), whole))

    assert wrong("retrain lake") == ["no command retrain"]
    assert wrong("status lake --fast") == ["no option --fast"]
    assert wrong("memory search lake 'a hole' --mode fuzzy") == [
        "--mode fuzzy; allowed: vector, text, hybrid"
    ]
    assert wrong("status") == ["0 arguments, where it takes 1 to 1"]
    assert wrong("status", whole=False) == []
    assert wrong("schedule lake --every 1d") == []


def _configuration(command: Command) -> str | None:
    """The configuration file of the repository that a command with settings uses."""
    files = [
        word
        for word in command.words
        if word.startswith(("configs/", "examples/")) and word.endswith(".yaml")
    ]
    if command.words[0] not in _TAKES_SETTINGS or not files or not (ROOT / files[0]).is_file():
        return None
    return None if files[0].startswith(_OTHER_FILES) else files[0]


@pytest.mark.parametrize("command", [each for each in COMMANDS if _configuration(each)], ids=str)
def test_settings_of_commands_are_known(command: Command) -> None:
    given = zip(command.words, command.words[1:], strict=False)
    settings = [value for option, value in given if option == "--set"]
    try:
        load_config(ROOT / str(_configuration(command)), settings)
    except ConfigError as error:
        # The examples are packages of their own, which need not be installed.
        if "examples/" not in str(command):
            pytest.fail(f"{command}: {error}")
