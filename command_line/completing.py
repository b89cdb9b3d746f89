"""Completion of arguments in a shell, by the Tab key."""

from __future__ import annotations

import os

import typer


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of runs in the store that the command line has named so far; none if it cannot be read."""
    from storage.errors import PipelineError
    from storage.runs.run import RunStore

    store = context.params.get("store") or os.environ.get("ERL_PIPELINE_STORE") or "store"
    try:
        names = RunStore(store).list()
    except PipelineError:
        return []
    return [name for name in names if name.startswith(incomplete)]
