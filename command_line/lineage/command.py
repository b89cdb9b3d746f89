"""`erl-pipeline lineage`: where something came from, what it reached, and whether all of a run is whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.lineage import export, questions, reach, samples, trained_on
from command_line.lineage.listing import Identifier
from command_line.options import DEFAULT_STORE, Json, RunName, Store
from command_line.output import counted, print_json, print_line
from command_line.selectors import artifact_or_row

if TYPE_CHECKING:
    from rich.tree import Tree

    from storage.lineage import LineageNode

app = typer.Typer(
    help="Follow artifacts and rows to what they came from and what they reached.", no_args_is_help=True
)
app.command("upstream")(reach.upstream)
app.command("downstream")(reach.downstream)
app.command("rows-using-memory")(questions.rows_using_memory)
app.command("policies-trained-on")(questions.policies_trained_on)
app.command("trained-on")(trained_on.trained_on)
app.command("samples")(samples.samples)
app.command("made-by")(questions.made_by)
app.command("export")(export.export)
app.command("graph")(export.graph)

Depth = Annotated[int, typer.Option("--depth", min=0, help="Steps from artifact to input to follow.")]


@app.command()
def show(
    run: RunName, identifier: Identifier, depth: Depth = 2, store: Store = DEFAULT_STORE, json: Json = False
) -> None:
    """Show what an artifact or a row came from."""
    from storage.artifacts.store import ArtifactStore
    from storage.lineage import explain
    from storage.runs.run import RunStore

    opened = RunStore(store).open(run)
    node = explain(ArtifactStore(store), opened, artifact_or_row(opened, identifier), depth)
    if json:
        print_json(asdict(node))
        return
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(_tree(node))


@app.command()
def verify(run: RunName, store: Store = DEFAULT_STORE, json: Json = False) -> None:
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
        if found.problems:
            print_line("Damaged or missing artifacts are made again by: erl-pipeline train CONFIG --check")
    if found.problems:
        raise typer.Exit(1)


def _tree(node: LineageNode) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    label = Text()
    if node.relation:
        label.append(f"{node.relation}: ", style="dim")
    label.append(node.kind.replace("_", " ") + " ", style="bold")
    label.append(node.id)
    if node.more:
        label.append(f"  ({node.more})", style="dim")
    for name, value in node.facts.items():
        label.append(f"\n{name}: ", style="dim")
        label.append(_shown(value))
    tree = Tree(label)
    for origin in node.origins:
        tree.children.append(_tree(origin))
    return tree


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
