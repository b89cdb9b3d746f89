"""`erl-pipeline diff --first-divergence`: where two runs begin to differ."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from command_line.output import counted, print_json, print_line

if TYPE_CHECKING:
    from erl_pipeline.evaluation.first_difference import ContentDifference, Divergence, Parting

_MOST_LINES = 12


def show_first_divergence(run_a: str, run_b: str, store: str, *, json: bool) -> None:
    """Print the first artifact that the runs do not share, and the first whose content differs."""
    from erl_pipeline.evaluation.first_difference import first_divergence
    from erl_pipeline.evaluation.history import read_history
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    artifacts, runs = ArtifactStore(store), RunStore(store)
    found = first_divergence(
        artifacts, *(read_history(artifacts, runs.open(name)) for name in (run_a, run_b))
    )
    if json:
        print_json({"a": run_a, "b": run_b, "store": store, **asdict(found)})
        return
    for line in divergence_lines(found, run_a, run_b):
        print_line(line)


def divergence_lines(found: Divergence, run_a: str, run_b: str) -> list[str]:
    """What was found, as lines of text."""
    lines = [
        f"A: {run_a}",
        f"B: {run_b}",
        "",
        f"{counted(found.shared, 'artifact')} shared before they diverge.",
    ]
    if found.parting is None:
        return [*lines, "They do not diverge: every artifact is the same."]
    lines.append(f"First artifact that differs: {_where(found.parting)}")
    lines += [f"  {line}" for line in found.parting.recipe[:_MOST_LINES]]
    if len(found.parting.recipe) > _MOST_LINES:
        lines.append(f"  {len(found.parting.recipe) - _MOST_LINES} more (--json has all)")
    if found.alike:
        lines.append(f"{counted(found.alike, 'artifact')} of other recipes with the same content follow.")
    if found.at is None:
        return [*lines, "No content differs."]
    if found.content is None:
        return [*lines, f"One of them ends before {_where(found.at)}."]
    lines.append(f"First content that differs: {_where(found.at)}")
    return [*lines, *(f"  {line}" for line in content_lines(found.content))]


def content_lines(content: ContentDifference) -> list[str]:
    """Where in a file the difference is, and both values."""
    lines = [f"file {content.file}"]
    if content.row is not None:
        place = ", ".join(f"{name} {value}" for name, value in content.place.items())
        lines.append(f"row {content.row} ({place})" if place else f"row {content.row}")
    lines.append(content.what + (f", element {list(content.position)}" if content.position else ""))
    if content.count is not None:
        lines.append(f"{counted(content.count, 'element')} of it differ, by at most {content.largest:.3g}")
    if content.a or content.b:
        lines += [f"A: {content.a}", f"B: {content.b}"]
    return lines


def _where(parting: Parting) -> str:
    place = parting.place
    when = f"iteration {place.iteration}" if place.iteration else "before the first iteration"
    ids = " and ".join("none" if each is None else each[:12] for each in (parting.a, parting.b))
    return f"{place.stage}{f' {place.key}' if place.key else ''}, {when} ({ids})"
