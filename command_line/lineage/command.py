"""`erl-pipeline lineage`: where something came from, what it reached, and whether a run is undamaged."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from command_line import options
from command_line.output import counted, print_json, print_line
from storage.errors import InputError

Identifier = Annotated[
    str,
    typer.Argument(
        metavar=options.SELECTOR,
        help="Id of an artifact, trajectory, SFT row or memory entry, or its beginning; or the latest "
        "checkpoint, or an iteration's.",
    ),
]
Limit = Annotated[int, typer.Option(min=1, help="Lines to print; --json has all.")]
Depth = Annotated[int, typer.Option(min=0, help="Steps to follow; with 0 only the thing itself is shown.")]
MostSteps = Annotated[int | None, typer.Option(min=1, help="Most steps to follow; default: all.")]
Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar=options.SELECTOR, help="A checkpoint's id, or the latest or an iteration's of --run."
    ),
]
Success = Annotated[
    bool | None, typer.Option("--success/--failure", help="Only rows that succeeded, or that did not.")
]

_LINES = 40

app = typer.Typer(
    help="Follow artifacts and rows to what they came from and what they reached.", no_args_is_help=True
)


@app.command()
def upstream(
    run: options.RunName,
    identifier: Identifier,
    depth: MostSteps = None,
    limit: Limit = _LINES,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List everything that an artifact or a row came from, the nearest first."""
    from command_line.lineage.reach import show_upstream

    show_upstream(run, identifier, depth, limit, store, json)


@app.command()
def downstream(
    run: options.RunName,
    identifier: Identifier,
    depth: MostSteps = None,
    limit: Limit = _LINES,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List all that an artifact or a row reached: rows, policies, evaluations, in all runs of the store."""
    from command_line.lineage.reach import show_downstream

    show_downstream(run, identifier, depth, limit, store, json)


@app.command()
def rows_using_memory(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="A memory entry's id, or its beginning.")],
    run: options.OnlyRun = None,
    limit: Limit = _LINES,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List every row that used a memory entry: reflections that saw it, and what came of them."""
    from command_line.lineage.questions import show_rows_using_memory

    show_rows_using_memory(entry, run, limit, store, json)


@app.command()
def policies_trained_on(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task's id.")],
    run: options.OnlyRun = None,
    limit: Limit = _LINES,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List every policy that trained on a task: directly, or as a descendant of one that did."""
    from command_line.lineage.questions import show_policies_trained_on

    show_policies_trained_on(task, run, limit, store, json)


@app.command()
def trained_on(
    checkpoint: Checkpoint,
    run: options.OnlyRun = None,
    role: Annotated[str | None, typer.Option(help="Only rows of this role.")] = None,
    task_type: Annotated[str | None, typer.Option(help="Only rows of this task type.")] = None,
    success: Success = None,
    min_reward: Annotated[float | None, typer.Option(help="Only rows with at least this reward.")] = None,
    iteration: Annotated[
        str | None, typer.Option(metavar="N|A..B", help="Only rows that these iterations sampled.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="CONTAINS", help="Only rows in which the policy said this.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=options.LARGEST_NUMBER, help="Rows to list, also with --json; the newest come first."
        ),
    ] = 20,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List what a policy learned from, by its own training or that of the policies before it.

    Each training stage makes a policy of its own: what `update_policy` of iteration N learned, the policy
    that `fine_tune` of iteration N made from it has by inheritance.
    """
    from command_line.lineage.trained_on import show_trained_on
    from storage.lineage.trained_on import RowFilter

    wanted = RowFilter(role, task_type, success, min_reward, options.iteration_span(iteration), text)
    show_trained_on(checkpoint, run, wanted, limit, store, json)


@app.command()
def samples(
    run: options.RunName,
    iteration: options.Iterations = None,
    limit: Limit = _LINES,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Count the samples that were issued, generated, trained, and dropped (by reason). Exit status 1 when the
    counts do not add up."""
    from command_line.lineage.questions import show_samples

    show_samples(run, iteration, limit, store, json)


@app.command()
def made_by(
    code_version: Annotated[
        str, typer.Argument(metavar="VERSION", help="A commit or version of the code, or its beginning.")
    ],
    run: options.OnlyRun = None,
    limit: Limit = _LINES,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """List everything that a version of the code made, the oldest first."""
    from command_line.lineage.questions import show_made_by

    show_made_by(code_version, run, limit, store, json)


@app.command()
def show(
    run: options.RunName,
    identifier: Identifier,
    depth: Depth = 2,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Show an artifact or a row, with its messages, and what it came from."""
    from command_line.lineage.reach import show_origins

    show_origins(run, identifier, depth, store, json)


@app.command()
def export(
    run: options.RunName,
    openlineage: Annotated[
        str,
        typer.Option(
            metavar="URL|FILE",
            help="Where the events go: http(s)://host:port of a consumer, or a file of JSON lines.",
        ),
    ],
    repository: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the code is, to be named in the events.")
    ] = None,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Send a run's stages as OpenLineage events, a START and a COMPLETE for each artifact."""
    from erl_pipeline.views.lineage.openlineage import export_run
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    sent = export_run(ArtifactStore(store), RunStore(store).open(run), openlineage, repository)
    if json:
        print_json({"run": run, "target": openlineage, "events": sent})
    else:
        print_line(f"Run {run}: {sent:,} OpenLineage events to {openlineage}.")


@app.command()
def graph(
    run: options.RunName,
    output: Annotated[Path, typer.Option(metavar="FILE", help="Ends in .mmd (Mermaid) or .json.")],
    iteration: Annotated[
        str | None, typer.Option(metavar="N|A..B", help="Iterations to show; default: the last 6.")
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this artifact, what it came from and what it reached."),
    ] = None,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Write a run's artifacts and the links between them as a graph, for programs that draw."""
    from erl_pipeline.views.lineage.graph import FORMATS, graph_text, run_lineage
    from storage.artifacts.store import ArtifactStore
    from storage.errors import store_errors
    from storage.runs.run import RunStore

    if output.suffix not in FORMATS:
        raise InputError(f"--output {output}: name a file that ends in {', '.join(FORMATS)}.")
    found = run_lineage(ArtifactStore(store), RunStore(store), run, options.iteration_span(iteration), of)
    with store_errors("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(graph_text(found, output.suffix), encoding="utf-8")
    if json:
        artifacts = sum(len(box.artifact_ids) for box in found.boxes)
        print_json({"output": str(output), "artifacts": artifacts, "iterations": found.iterations})
    else:
        print_line(f"Graph: {output}  {found.caption}")


@app.command()
def verify(
    run: options.RunName, store: options.ExistingStore = options.DEFAULT_STORE, json: options.Json = False
) -> None:
    """Hash every file of a run again, count rows and follow all links. Exit status 1 when one is wrong."""
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.verification import verify_run

    found = verify_run(ArtifactStore(store), RunStore(store).open(run))
    if json:
        print_json(asdict(found))
    else:
        for problem in found.problems:
            print_line(f"wrong: {problem}")
        verdict = counted(len(found.problems), "problem") if found.problems else "all is whole"
        print_line(
            f"Run {run}: {verdict}. Checked {counted(found.artifacts, 'artifact')}, "
            f"{counted(found.files, 'file')}, {found.bytes / 1e6:,.1f} MB, "
            f"{counted(found.trajectories, 'trajectory', 'trajectories')}, "
            f"{counted(found.memory_entries, 'memory entry', 'memory entries')}, "
            f"{counted(found.sft_rows, 'SFT row')}."
        )
        if found.pruned_files:
            print_line(
                f"Pruned by retention: {counted(found.pruned_files, 'file')}, "
                f"{found.pruned_bytes / 1e6:,.1f} MB."
            )
        if found.redacted_files:
            redacted = counted(found.redacted_files, "file")
            print_line(f"Redacted, since a user of a served policy was forgotten: {redacted}.")
        if found.problems:
            print_line(
                f"Make damaged or missing artifacts again: erl-pipeline train CONFIG --name {run} --check"
            )
    if found.problems:
        raise typer.Exit(1)
