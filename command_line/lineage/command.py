"""`erl-pipeline lineage`: where something came from, what it reached, and whether a run is undamaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from command_line.lineage import questions, reach, trained_on
from command_line.lineage.reach import Identifier
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName, artifact_or_row, iteration_span
from command_line.output import command, counted, print_json, print_line, wide_console
from erl_pipeline.views.lineage.graph import FORMATS, graph_text, run_lineage
from erl_pipeline.views.lineage.openlineage import export_run
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage import LineageNode, explain
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run

app = typer.Typer(
    help="Follow artifacts and rows to what they came from and what they reached.", no_args_is_help=True
)
app.command("upstream")(reach.upstream)
app.command("downstream")(reach.downstream)
app.command("rows-using-memory")(questions.rows_using_memory)
app.command("policies-trained-on")(questions.policies_trained_on)
app.command("trained-on")(trained_on.trained_on)
app.command("samples")(questions.samples)
app.command("made-by")(questions.made_by)

Depth = Annotated[
    int, typer.Option("--depth", min=0, help="Steps to follow; with 0 only the thing itself is shown.")
]

_LONGEST = 300
"""Most characters of a message of the thing asked for."""
_LINE = 100
_OF_ORIGINS = ("stage", "role", "task_id", "iteration", "reward", "success", "feedback", "text", "said")
"""Facts of origins that are printed, each on one line of `_LINE` characters; --json gives all."""


@app.command()
def show(
    run: RunName,
    identifier: Identifier,
    depth: Depth = 2,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Show an artifact or a row, with its messages, and what it came from."""
    opened = RunStore(store).open(run)
    node = explain(ArtifactStore(store), opened, artifact_or_row(opened, identifier), depth)
    if json:
        print_json(asdict(node))
        return
    wide_console().print(_tree(node))
    if "episode_id" in node.facts:
        words = ["episodes", "show", node.facts["episode_id"], "--prompts"]
        print_line(f"The whole episode: {command(words, store)}")


def _tree(node: LineageNode) -> Tree:
    label = Text()
    if node.relation:
        label.append(f"{node.relation}: ", style="dim")
    label.append(node.kind.replace("_", " ") + " ", style="bold")
    label.append(node.id)
    if node.more:
        label.append(f"  ({'more with --depth' if node.more == 'deeper' else node.more})", style="dim")
    for name, value in _facts(node):
        label.append(f"\n{name}: ", style="dim")
        label.append(value)
    tree = Tree(label)
    for origin in node.origins:
        tree.children.append(_tree(origin))
    return tree


def _facts(node: LineageNode) -> list[tuple[str, str]]:
    """All facts and messages of the thing asked for; the main facts of its origins."""
    if node.relation:
        messages = node.facts.get("messages", [])
        facts = {**node.facts, **({"said": _last_words(messages), "text": ""} if messages else {})}
        chief = [(name, facts.get(name, "")) for name in _OF_ORIGINS]
        return [(name, _cut(value, _LINE)) for name, value in chief if value != ""]
    plain = {name: value for name, value in node.facts.items() if name not in ("messages", "text")}
    shown = [(name, _shown(value)) for name, value in plain.items() if value != ""]
    messages = node.facts.get("messages")
    if messages is None and "text" in node.facts:
        shown.append(("text", node.facts["text"]))
    return shown + [(f"[{each['role']}]", _cut(_content(each), _LONGEST)) for each in messages or ()]


def _last_words(messages: Sequence[dict[str, Any]]) -> str:
    """What the policy said last."""
    said = [_content(each) for each in messages if each["role"] == "assistant"]
    return said[-1] if said else ""


def _content(message: dict[str, Any]) -> str:
    """The text of a message, or the tools that it calls."""
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message.get("content") or (f"calls {', '.join(calls)}" if calls else "")


def _cut(value: Any, length: int) -> str:
    text = _shown(value)
    if length == _LINE:
        text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@app.command()
def export(
    run: RunName,
    openlineage: Annotated[
        str,
        typer.Option(
            "--openlineage",
            metavar="URL|FILE",
            help="Where the events go: http(s)://host:port of a consumer, or a file of JSON lines.",
        ),
    ],
    repository: Annotated[
        str | None,
        typer.Option("--repository", metavar="URL", help="Where the code is, to be named in the events."),
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Send a run's stages as OpenLineage events, a START and a COMPLETE for each artifact."""
    sent = export_run(ArtifactStore(store), RunStore(store).open(run), openlineage, repository)
    if json:
        print_json({"run": run, "target": openlineage, "events": sent})
    else:
        print_line(f"Run {run}: {sent:,} OpenLineage events to {openlineage}.")


@app.command()
def graph(
    run: RunName,
    output: Annotated[
        Path,
        typer.Option("--output", metavar="FILE", help="Ends in .mmd (Mermaid), .dot (Graphviz) or .json."),
    ],
    iteration: Annotated[
        str | None,
        typer.Option("--iteration", metavar="N|A..B", help="Iterations to show; default: the last 6."),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option("--of", metavar="ID", help="Only this artifact, what it came from and what it reached."),
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write a run's artifacts and the links between them as a graph, for programs that draw."""
    from storage.artifacts.store import ArtifactStore
    from storage.errors import store_errors
    from storage.runs.run import RunStore

    if output.suffix not in FORMATS:
        raise InputError(f"--output {output}: name a file that ends in {', '.join(FORMATS)}.")
    found = run_lineage(ArtifactStore(store), RunStore(store), run, iteration_span(iteration), of)
    with store_errors("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(graph_text(found, output.suffix), encoding="utf-8")
    if json:
        artifacts = sum(len(box.artifact_ids) for box in found.boxes)
        print_json({"output": str(output), "artifacts": artifacts, "iterations": found.iterations})
    else:
        print_line(f"Graph: {output}  {found.caption}")


@app.command()
def verify(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Hash every file of a run again, count rows and follow all links. Exit status 1 when one is wrong."""
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
