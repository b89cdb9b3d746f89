"""An episode as text in a terminal."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from erl_pipeline.views.report import episodes
from erl_pipeline.views.report.texts import printable, visible
from storage.artifacts.manifest import Manifest
from storage.tables.training import SUPERVISED

_PRUNED = "The texts of this trajectory were pruned by retention."
_CELL = re.compile(r"(up|down|left|right|bump|bad) c\d+")
_HOW_CELLS_ARE_NAMED = (
    "such as down c4: the player moved down, to cell 4 (0 is at the top left, counted row by row on the "
    "widest board); bump: it moved against the edge"
)
_MEASURED = (
    ("mean_ratio", "ratio"),
    ("clipped_share", "clipped"),
    ("entropy", "entropy"),
    ("mismatch", "mismatch"),
    ("loss", "loss"),
)


def print_episode(
    rows: list[dict[str, Any]],
    holder: Manifest,
    training: Mapping[str, Sequence[Mapping[str, Any]]],
    memory: Mapping[str, str],
    calls: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    prompts: bool,
) -> None:
    """Print the trajectories of an episode one after the other, with the calls of agents, and with what
    updates did with each."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    rows = episodes.in_order(rows)
    first = rows[0]
    console.print(_plain(f"Episode {first['episode_id']}"))
    console.print(
        _plain(
            f"Iteration {first['iteration']}, task {first['task_id']} ({first['task_type']}), "
            f"sample {first['sample_index']}; {holder.stage} {holder.artifact_id[:12]} of run {holder.run}"
        )
    )
    picture = episodes.task_picture(json.loads(first["task_payload"]))
    for line in picture.board:
        console.print(f"  {_plain(line)}")
    for name, value in picture.facts:
        console.print(_labelled(name, value))
    shown = episodes.episode_parts(rows, memory, episodes.Drawing(), training).parts
    # An attempt has its feedback, and a text what memory gave for it, with it.
    parts = [part for part in shown if part.kind in ("attempt", "text")]
    if any(_CELL.fullmatch(turn.answer.text) for part in parts for turn in part.turns):
        console.print(_labelled("answers", _HOW_CELLS_ARE_NAMED))
    for part in parts:
        console.print(Rule(_heading(part), align="left", style="dim"))
        _print_part(console, part, prompts)
        for call in calls.get(part.row["trajectory_id"], ()) if part.kind == "attempt" else ():
            console.print(_call_line(call))
        for record in part.training or ():
            console.print(_training_line(record, part.row["role"]))


def _heading(part: episodes.EpisodePart) -> Text:
    row = part.row
    heading = Text(_plain(part.title), style="bold")
    style = {"solved": "green", "failed": "red"}.get(part.outcome, "")
    heading.append(f"  {part.outcome}" if part.outcome else "", style=style)
    if row["reward"] is not None:
        heading.append(f"  reward {row['reward']:g}", style="")
    if row["finish_reason"] not in ("done", "stop"):
        heading.append(_plain(f"  {row['finish_reason']}"), style="yellow")
    return heading


def _print_part(console: Console, part: episodes.EpisodePart, prompts: bool) -> None:
    row = part.row
    console.print(Text(_plain(row["trajectory_id"]), style="dim"))
    if row["messages"] is None:
        console.print(_PRUNED, style="yellow")
    if prompts and part.prompt:
        console.print(_labelled("prompt", part.prompt))
    for _, entry in part.memory:
        console.print(_labelled("memory", entry))
    if part.text:
        console.print(_labelled("text", part.text))
    for turn in part.turns:
        if turn.policy or not turn.tools:
            console.print(_labelled("policy", episodes.whole(turn.policy)))
        for tool in turn.tools:
            asked = ", ".join(f"{name}: {episodes.whole(value)}" for name, value in tool.arguments)
            console.print(_labelled(f"calls {tool.name}", asked))
            console.print(_labelled("answer", tool.answer.text))
        if turn.answer.text:
            console.print(_labelled("environment", turn.answer.text))
    if part.feedback:
        console.print(_labelled("feedback", part.feedback))


def _call_line(call: Mapping[str, Any]) -> Text:
    said = [call["api"] + (" (stream)" if call["streamed"] else "")]
    if call["start"] is not None:
        where = f"sequence {call['sequence_index'] + 1}, tokens {call['start'] + 1} to {call['end']}"
        said += [where, call["finish"]]
    if call["retry_of"] is not None:
        said.append("the same answer once more")
    if call["overridden"]:
        said.append(f"without its {', '.join(call['overridden'])}")
    if call["problem"] is not None:
        said.append(call["problem"])
    said.append(f"policy {call['engine_ms']:.0f} ms, gateway {call['gateway_ms']:.1f} ms")
    return _labelled(call["call_id"] or "refused call", "; ".join(said))


def _training_line(record: Mapping[str, Any], role: str) -> Text:
    by = f"{record['stage']} {record['checkpoint'][:12]} of run {record['run']}"
    said = [] if record["advantage"] is None else [f"advantage {record['advantage']:.3g}"]
    if record["not_trained"] is not None:
        return _labelled("not trained", f"{', '.join([record['not_trained'], *said])}; {by}", "yellow")
    if record["weight"] != 1.0:
        said.append(f"weight {record['weight']:.3g}")
    said.append(f"{record['trained_tokens']} tokens")
    said += [f"{label} {record[name]:.3g}" for name, label in _MEASURED if record[name] is not None]
    label = "fine-tuned" if record["kind"] == SUPERVISED else "trained"
    if record["role"] != role:
        label = f"{label} as {record['role'].replace('_', ' ')}"
    return _labelled(label, f"{', '.join(said)}; {by}", "green")


def _labelled(label: str, text: str, style: str = "dim") -> Text:
    line = Text(f"  {_plain(label)}: ", style=style)
    line.append(printable(text.strip(), len(text)).replace("\n", "\n    "), style="")
    return line


def _plain(name: str) -> str:
    """A name on one line. What a policy, an environment or an import said must not steer the terminal."""
    return str(visible(name)).replace("\n", "␊")
