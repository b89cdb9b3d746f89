"""`erl-pipeline diff`: two runs of a store side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json

RunA = Annotated[str, typer.Argument(metavar="RUN_A", help="Name of a run in the store.")]
RunB = Annotated[str, typer.Argument(metavar="RUN_B", help="Name of another run in the store.")]


def diff(
    run_a: RunA,
    run_b: RunB,
    first: Annotated[
        bool,
        typer.Option(
            "--first-divergence", help="Only the first difference: artifact, row and token or tensor."
        ),
    ] = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show which settings of two runs differ, which artifacts they share, and their results side by side."""
    from command_line.runs.differences import show_differences, show_first_divergence

    show = show_first_divergence if first else show_differences
    show(run_a, run_b, store, json=json)
