"""Usage errors of the command line, printed like all other errors."""

from __future__ import annotations

import sys

import typer


def print_usage_error(error: typer.TyperException) -> None:
    """Print one `error: …` line on standard error, with the command whose help says what is allowed.

    Without a message nothing is printed: a group of commands, called without a command, has printed its help.
    """
    message = error.format_message().rstrip(".").strip()
    if not message:
        return
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" See: {context.command_path} --help"
    end = "" if message.endswith("?") else "."
    # pydantic, with which typer reads arguments, puts these words before typer's own.
    one_line = " ".join(message.split()).replace(": Value error, ", ": ")
    print(f"error: {one_line[:1].lower()}{one_line[1:]}{end}{hint}", file=sys.stderr)
