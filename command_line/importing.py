"""`erl-pipeline import`: imports what was made elsewhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import command, counted, print_json, print_line, print_table
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.stages.rollouts.foreign_rows import Format
    from erl_pipeline.stages.rollouts.import_trajectories import ImportedIteration

app = typer.Typer(help="Bring in what was made elsewhere.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Trajectories, in .parquet or .jsonl.")]
Name = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the run that will hold them.")]


FileFormat = Literal["schema", "trl", "verl", "messages"]
"""Format of a file of trajectories."""


_OTHER_FORMATS = "docs/import.md has the columns; files of TRL, of verl and of chats are mapped by --format"


@dataclass(frozen=True)
class _Options:
    """Facts that a file of another format does not hold."""

    rewards: tuple[str, ...]
    temperature: float
    success: float
    role: str | None


@app.callback()
def _group() -> None:
    """Bring in what was made elsewhere."""


@app.command()
def trajectories(
    file: File,
    name: Name,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    format_: Annotated[
        FileFormat,
        typer.Option("--format", help="schema: that of this project; the others are mapped."),
    ] = "schema",
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The tokenizer that the rows' policy had.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model whose log-probabilities the rows get.")
    ] = None,
    reward: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Column of the reward; several are added up.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=1e-6, help="The sampling temperature of the rows.")] = 1.0,
    success: Annotated[
        float, typer.Option(metavar="REWARD", help="A row with this reward or more succeeded.")
    ] = 1.0,
    role: Annotated[
        str | None,
        typer.Option(help="The method's role for such answers; default: ERL's first role."),
    ] = None,
) -> None:
    """Check trajectories against the schema and commit them, so that `replay --offline` can train on them.

    Rows of other formats are mapped first: docs/import.md.
    """
    from erl_pipeline.stages.rollouts.import_trajectories import import_trajectories
    from storage.tables.trajectory_import import MalformedTrajectories

    if format_ == "schema":
        if tokenizer is not None:
            _require_tokenizer(file, tokenizer)
        try:
            imported = import_trajectories(store, file, name)
            replaced = sum(each.replaced_texts for each in imported)
        except MalformedTrajectories as error:
            raise InputError(f"{error}\n  {_OTHER_FORMATS}") from error
    else:
        if tokenizer is None or model is None:
            raise InputError(
                f"--format {format_} needs --tokenizer FOLDER and --model FOLDER: the file holds "
                "texts, and no log-probabilities"
            )
        imported, replaced = _import_foreign(
            store,
            name,
            file,
            format_,
            tokenizer,
            model,
            _Options(tuple(reward or ()), temperature, success, role),
        )
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
    words = [
        "replay",
        name,
        "--offline",
        "--iteration",
        span,
        "--config",
        "CONFIG",
        "--name",
        f"{name}-trained",
    ]
    print_line("  " + command([*words, *([] if store == DEFAULT_STORE else ["--store", store])]))
    if format_ != "schema":
        print_line(
            f"Its log-probabilities are those of {model}, a trainer's and not the sampler's; texts were "
            "tokenized again."
        )


def _import_foreign(
    store: str,
    name: str,
    file: Path,
    format_: Format,
    tokenizer: Path,
    model: Path,
    options: _Options,
) -> tuple[list[ImportedIteration], int]:
    """Map a file to the schema, in a temporary folder, and import the result; also returns in how many texts
    something was replaced."""
    from erl_pipeline.policies.checkpoint_files import weights_digest
    from erl_pipeline.stages.rollouts.foreign_trajectories import (
        ForeignFile,
        first_role,
        foreign_trajectories,
    )
    from erl_pipeline.stages.rollouts.import_trajectories import import_trajectories
    from storage.filesystem import sha256_file
    from storage.tables.trajectories import write_trajectories
    from storage.texts import StorableTexts

    foreign = ForeignFile(
        path=file,
        format=format_,
        tokenizer=tokenizer,
        checkpoint=model,
        role=options.role or first_role(),
        rewards=options.rewards,
        temperature=options.temperature,
        success_threshold=options.success,
    )
    texts = StorableTexts()
    rows = foreign_trajectories(foreign, texts)
    origin = {
        "format": format_,
        "source_sha256": sha256_file(file),
        "logprobs": "trainer",
        "logprobs_checkpoint": weights_digest(str(model)),
        **texts.counters(),
    }
    with TemporaryDirectory() as folder:
        mapped = Path(folder) / f"{file.stem}.parquet"
        write_trajectories(mapped, rows)
        imported = import_trajectories(store, mapped, name, origin)
    return imported, texts.replaced


def _require_tokenizer(file: Path, tokenizer: Path) -> None:
    """Raise InputError, which names the row, for a trajectory of another tokenizer."""
    from erl_pipeline.policies.pretrained import load_tokenizer, tokenizer_digest
    from storage.tables.trajectory_import import check_trajectories, read_checked

    check_trajectories(file)
    named = tokenizer_digest(load_tokenizer(tokenizer))
    for number, (row, _) in enumerate(read_checked(file), start=1):
        if row.tokenizer_digest not in ("", named):
            raise InputError(
                f"{file}, row {number}: trajectory {row.trajectory_id} was tokenized by "
                f"{row.tokenizer_digest}, and {tokenizer} is {named}"
            )
