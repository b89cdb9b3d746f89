"""`erl-pipeline import`: imports what was made elsewhere."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import command, counted, print_json, print_line, print_table
from storage.errors import InputError

app = typer.Typer(help="Bring in what was made elsewhere.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Trajectories, in .parquet or .jsonl.")]
Name = Annotated[str, typer.Option(metavar="NAME", help="Name of the run that will hold them.")]


@app.callback()
def _group() -> None:
    """Bring in what was made elsewhere."""


@app.command()
def trajectories(
    file: File,
    name: Name,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The tokenizer that the rows' policy had.")
    ] = None,
) -> None:
    """Check trajectories against the schema and commit them, so that `replay --offline` can train on them.

    docs/import.md says what each column means.
    """
    from erl_pipeline.runs.origins import import_trajectories
    from storage.tables.trajectory_import import MalformedTrajectories

    if tokenizer is not None:
        _require_tokenizer(file, tokenizer)
    try:
        imported = import_trajectories(store, file, name)
    except MalformedTrajectories as error:
        raise InputError(f"{error}\n  docs/import.md has the columns") from error
    replaced = sum(each.replaced_texts for each in imported)
    rows = sum(each.rows for each in imported)
    if json:
        print_json(
            {
                "run": name,
                "store": store,
                "rows": rows,
                "replaced_texts": replaced,
                "iterations": [asdict(each) for each in imported],
            }
        )
        return
    print_table(
        [
            {
                "iter": str(each.iteration),
                "rows": f"{each.rows:,}",
                "artifact": each.trajectories_id[:12],
                "": "was in the store" if each.reused else "",
            }
            for each in imported
        ],
        left=["artifact", ""],
    )
    span = f"{imported[0].iteration}..{imported[-1].iteration}"
    print_line(
        f"Run {name}: {counted(rows, 'trajectory', 'trajectories')} of "
        f"{counted(len(imported), 'iteration')}, all as the schema says."
    )
    if replaced:
        print_line(f"In {counted(replaced, 'text')} halves of characters were replaced by U+FFFD.")
    print_line("Try next:")
    words = ["replay", name, "--offline", "--iteration", span, "--config", "CONFIG"]
    print_line("  " + command([*words, "--name", f"{name}-trained"], store))


def _require_tokenizer(file: Path, tokenizer: Path) -> None:
    """Raise InputError, which names the row, for a trajectory of another tokenizer."""
    from erl_pipeline.policies.tokenizers import load_tokenizer, tokenizer_digest
    from storage.tables.trajectory_import import check_trajectories, read_checked

    check_trajectories(file)
    named = tokenizer_digest(load_tokenizer(tokenizer))
    for number, (row, _) in enumerate(read_checked(file), start=1):
        if row.tokenizer_digest not in ("", named):
            raise InputError(
                f"{file}, row {number}: trajectory {row.trajectory_id} was tokenized by "
                f"{row.tokenizer_digest}, and {tokenizer} is {named}"
            )
