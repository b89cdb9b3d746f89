"""Where an exception was raised, for those who wrote the code: they look for a line of theirs."""

import sys
from traceback import walk_tb
from types import FrameType

_OWN = frozenset({"erl_pipeline", "storage", "flows", "command_line"})
_CHECKS = frozenset({"erl_pipeline.environments.agent.attempts", "erl_pipeline.episodes.guarded_environment"})
"""Modules that raise for what they were given by foreign code. Their messages say all; a line of theirs would
send its reader into the wrong file."""


def raised_at(error: BaseException) -> str:
    """File and line, such as `my_agent.py, line 12`; empty where only a check of this project's raised it.

    Of a call that passes through several packages, it is the innermost line of the first one that is neither
    this project nor Python's library: an agent's line that calls a client, not one within that client.
    """
    lines = [(_module(frame), frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module, _, _ in lines]
    foreign = [each for each in packages if each not in _OWN and each not in sys.stdlib_module_names]
    if foreign:
        lines = [line for line, package in zip(lines, packages, strict=True) if package == foreign[0]]
    elif not lines or lines[-1][0] in _CHECKS:
        return ""
    _, file, number = lines[-1]
    return f"{file.rpartition('/')[2]}, line {number}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
