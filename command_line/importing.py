"""`erl-pipeline import`: imports what was made elsewhere."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import command, counted, print_json, print_line, print_table
from storage.errors import InputError

app = typer.Typer(help="Bring in what was made elsewhere.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Trajectories, in .parquet or .jsonl.")]
Name = Annotated[str, typer.Option(metavar="NAME", help="Name of the run that will hold them.")]


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

    storage/tables/trajectories.py says what each column means.
    """
    from erl_pipeline.runs.origins import import_trajectories
    from storage.tables.trajectory_import import MalformedTrajectories

    if tokenizer is not None:
        _require_tokenizer(file, tokenizer)
    try:
        imported = import_trajectories(store, file, name)
    except MalformedTrajectories as error:
        raise InputError(f"{error}\n  storage/tables/trajectories.py has the columns") from error
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


@app.command()
def traces(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Traces: JSON lines, or one document in .json.")
    ],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the run, or memory, that will hold them.")
    ],
    format: Annotated[
        Literal["otel", "openinference", "langfuse", "openai"],
        typer.Option(help="OTLP JSON with GenAI spans; OpenInference; Langfuse; OpenAI JSON lines."),
    ],
    source_model: Annotated[
        str, typer.Option(metavar="NAME", help="The model that answered; calls of others are refused.")
    ],
    as_: Annotated[
        Literal["sft", "memory"],
        typer.Option("--as", help="A dataset of answers for a warm start, or comments as a memory."),
    ],
    min_reward: Annotated[
        float | None, typer.Option(help="Take the answers with a score above this number.")
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="NAME", help="The score that counts, if there are several.")
    ] = None,
    accept_unscored: Annotated[
        bool, typer.Option("--accept-unscored", help="Also take answers without a score.")
    ] = False,
    terms_checked: Annotated[
        bool,
        typer.Option("--terms-checked", help="The terms of the source model allow to train on its answers."),
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what is refused, and count it.")
    ] = False,
    embedding_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --as memory: what compares situations.")
    ] = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Import conversations that another program recorded, for a warm start or as entries of a memory.

    They have no tokens and no log-probabilities, so that no policy gradient can be trained on them.
    docs/traces.md says what is read and what is refused.
    """
    from erl_pipeline.config.memory import MemoryConfig
    from erl_pipeline.policies.embedding import SentenceEmbedder
    from erl_pipeline.traces.imports import Choice, import_memory, import_sft

    choice = Choice(
        format=format,
        source_model=source_model,
        score=score,
        min_reward=min_reward,
        accept_unscored=accept_unscored,
        terms_checked=terms_checked,
        skip_bad=skip_bad,
    )
    if as_ == "sft":
        imported = import_sft(store, file, name, choice)
    else:
        model = embedding_model or MemoryConfig().embedding_model
        imported = import_memory(store, file, name, choice, SentenceEmbedder(model))
    counters: dict[str, Any] = {key: value for key, value in imported.counters.items() if value}
    if json:
        dataset = None if imported.path is None else str(imported.path)
        found = {"artifact": imported.artifact_id, "dataset": dataset, "reused": imported.reused}
        print_json({"run": name, "store": store, **found, **imported.counters})
        return
    print_table(
        [{"": key.replace("_", " "), "number": f"{value:,}"} for key, value in counters.items()], [""]
    )
    for problem in imported.problems:
        print_line(f"left out: {problem}")
    known = ", which was in the store" if imported.reused else ""
    kept = "Run" if as_ == "sft" else "Memory"
    print_line(f"{kept} {name}: artifact {imported.artifact_id[:12]}{known}.")
    print_line("Try next:")
    if imported.path is None:
        print_line("  " + command(["memory", "list", name], store))
        return
    print_line("  a configuration with")
    print_line(f"  policy: {{warm_start: {{type: messages, file: {imported.path}}}}}")
    print_line("The rows are texts without tokens and log-probabilities: for supervised training only.")


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
