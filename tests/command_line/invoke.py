"""Calling `erl-pipeline` in this process, and configurations whose runs take seconds."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line.main import main

SMALL = """\
name: small
iterations: 2
resources: {threads: 1}
environment: {type: frozen_lake, training_boards: 32, rows: [3, 3], path_length: [1, 2], max_steps: 2}
policy: {type: tiny, layers: 1, cold_start: {steps: 60, demonstrations_per_step: 8, gate: 0}}
rollouts: {tasks_per_iteration: 4, group_size: 4, tasks_per_shard: 2}
evaluation: {tasks: 8}
"""
REMEMBERING = SMALL.replace("iterations: 2", "iterations: 3").replace(
    "tasks_per_iteration: 4", "tasks_per_iteration: 8"
)


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    status: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.output)


@dataclass(frozen=True)
class FinishedRun:
    """A run that was trained once, and what its training printed."""

    config: Path
    store: Path
    training: Result


def invoke(*words: object) -> Result:
    """Run the command with these words."""
    output, errors = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["erl-pipeline", *map(str, words)]
    status = 0
    try:
        with redirect_stdout(output), redirect_stderr(errors):
            main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv = before
    return Result(status, output.getvalue(), errors.getvalue())
