"""Options that several memory commands have."""

from __future__ import annotations

from typing import Annotated

import typer

TopK = Annotated[int, typer.Option("--top-k", min=1, help="Entries to show.")]
TaskType = Annotated[str | None, typer.Option("--task-type", help="Only entries of this task type.")]
Environment = Annotated[str | None, typer.Option("--environment", help="Only entries of this environment.")]
MinimumCredit = Annotated[
    float | None, typer.Option("--min-credit", help="Only entries with at least this credit.")
]
Iteration = Annotated[
    int | None, typer.Option("--iteration", min=0, help="The memory as it was after this iteration.")
]
Since = Annotated[
    int | None, typer.Option("--since", min=0, help="Only entries of this iteration and later.")
]
Entry = Annotated[str, typer.Argument(metavar="ENTRY", help="Id of a memory entry, or its beginning.")]
