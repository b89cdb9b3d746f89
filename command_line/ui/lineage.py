"""What one thing came from and led to, a few steps away, laid out in columns; and the pages that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from command_line.ui.pages import Crumb, ThePages, TheStore, address, iteration_crumb, run_crumbs
from command_line.ui.stored import Stored
from storage.artifacts.manifest import Manifest
from storage.errors import InputError
from storage.lineage.graph import START, Visit
from storage.lineage.reach import Reach, downstream_near, upstream_near

MOST_STEPS = 6
_MOST_SHOWN = 40

Direction = Literal["upstream", "downstream"]


@dataclass(frozen=True)
class Neighbour:
    """A thing in a column; `relation` is its relation to the thing `via`."""

    kind: str
    id: str
    title: str
    detail: str
    relation: str
    via: str


@dataclass(frozen=True)
class LineageStep:
    """The things that are `depth` steps away; `left_out` is the number of those that are not shown."""

    depth: int
    things: Sequence[Neighbour]
    left_out: int


@dataclass(frozen=True)
class Neighbourhood:
    """One thing and what is around it. `manifest` is None for a row."""

    kind: str
    id: str
    run: str
    """The run that made it."""
    manifest: Manifest | None
    upstream: Sequence[LineageStep]
    downstream: Sequence[LineageStep]
    manifests: Mapping[str, Manifest] = field(repr=False)
    """All artifacts of the store, by id."""

    def links(self) -> list[tuple[str, str]]:
        """Ids of two shown things, of which the second was made from the first; those of artifacts all, those
        of rows along the shortest way."""
        before = [thing for step in self.upstream for thing in step.things]
        after = [thing for step in self.downstream for thing in step.things]
        shown = {self.id, *(thing.id for thing in (*before, *after))}
        along = [(thing.id, thing.via) for thing in before] + [(thing.via, thing.id) for thing in after]
        inputs = [
            (made_from, artifact_id)
            for artifact_id in shown & self.manifests.keys()
            for made_from in self.manifests[artifact_id].inputs.values()
        ]
        return sorted({(first, second) for first, second in (*along, *inputs) if {first, second} <= shown})


def neighbourhood(stored: Stored, identifier: str, depth: int) -> Neighbourhood:
    """What is around an artifact, trajectory, memory entry or dataset row.

    Raises InputError when nothing, or more than one thing, has this id.
    """
    graph = stored.lineage.graph()
    manifests = graph.manifests
    matching = [artifact_id for artifact_id in manifests if artifact_id.startswith(identifier)]
    if len(matching) == 1:
        start = matching[0]
        return Neighbourhood(
            "artifact",
            start,
            manifests[start].run,
            manifests[start],
            _steps(
                [_artifact(manifests, *each) for each in graph.ancestors({start: START}, depth).items()],
                start,
            ),
            _steps(
                [_artifact(manifests, *each) for each in graph.descendants({start: START}, depth).items()],
                start,
            ),
            manifests,
        )
    if len(matching) > 1:
        raise InputError(f"{len(matching)} artifacts begin with {identifier!r}. Give more of the id.")
    places = stored.lineage.places(graph)
    came, led = (
        search(stored.artifacts, graph, places, identifier, depth)
        for search in (upstream_near, downstream_near)
    )
    runs = [thing.facts["run"] for thing in came.things if thing.kind == "artifact" and thing.via == came.id]
    return Neighbourhood(came.kind, came.id, runs[0], None, _of_reach(came), _of_reach(led), manifests)


def _artifact(manifests: Mapping[str, Manifest], artifact_id: str, visit: Visit) -> tuple[int, Neighbour]:
    manifest = manifests.get(artifact_id)
    if manifest is None:
        gone = Neighbour("artifact", artifact_id, "not in the store", "", visit.relation, visit.via)
        return visit.depth, gone
    return visit.depth, Neighbour(
        "artifact",
        artifact_id,
        manifest.stage,
        _place(manifest.run, manifest.iteration),
        visit.relation,
        visit.via,
    )


def _of_reach(reach: Reach) -> list[LineageStep]:
    found = [
        (
            thing.depth,
            Neighbour(thing.kind, thing.id, *_described(thing.kind, thing.facts), thing.relation, thing.via),
        )
        for thing in reach.things
    ]
    return _steps(found, reach.id)


def _described(kind: str, facts: Mapping[str, Any]) -> tuple[str, str]:
    if kind == "artifact":
        return str(facts.get("stage", "not in the store")), _place(
            str(facts.get("run", "")), facts.get("iteration")
        )
    title = str(facts["role"]).replace("_", " ") if "role" in facts else kind.replace("_", " ")
    task = facts.get("task_id") or facts.get("task_type") or ""
    return title, f"{task}, iteration {facts.get('iteration')}"


def _place(run: str, iteration: int | None) -> str:
    return f"{run}, start" if iteration is None else f"{run}, iteration {iteration}"


def _steps(found: Sequence[tuple[int, Neighbour]], start: str) -> list[LineageStep]:
    by_depth: dict[int, list[Neighbour]] = {}
    for depth, neighbour in found:
        if neighbour.id != start:
            by_depth.setdefault(depth, []).append(neighbour)
    return [
        LineageStep(depth, things[:_MOST_SHOWN], max(0, len(things) - _MOST_SHOWN))
        for depth, things in sorted(by_depth.items())
    ]


router = APIRouter()

Depth = Annotated[int, Query(ge=1, le=MOST_STEPS)]


@router.get("/artifacts/{artifact_id}")
def artifact(request: Request, artifact_id: str, stored: TheStore, pages: ThePages) -> HTMLResponse:
    """The manifest of an artifact."""
    found = stored.artifacts.resolve(artifact_id)
    manifest = stored.artifacts.find(found)
    assert manifest is not None
    near = neighbourhood(stored, found, 1)
    commands = [pages.command("Its lineage in the terminal", "lineage", "upstream", manifest.run, found)]
    if manifest.kind == "checkpoint" and manifest.iteration is not None:
        commands += [
            pages.command("What it was trained on", "lineage", "trained-on", found),
            pages.command(
                "Evaluate it", "evaluate", manifest.run, "--checkpoint", found, "--tasks", "generated"
            ),
            pages.command(
                "Write it to a folder", *("export", manifest.run, "--checkpoint", found, "--output", "FOLDER")
            ),
        ]
    return pages.page(
        request,
        "artifact.html.j2",
        title=f"{manifest.stage} {found[:12]}",
        crumbs=run_crumbs(
            manifest.run,
            *([] if manifest.iteration is None else [iteration_crumb(manifest.run, manifest.iteration)]),
            Crumb(manifest.stage, address("artifacts", found)),
        ),
        commands=commands,
        manifest=manifest,
        pruned={file.path: file for file in stored.artifacts.pruned(manifest).files},
        near=near,
    )


@router.get("/lineage/{identifier}")
def lineage(
    request: Request, identifier: str, stored: TheStore, pages: ThePages, depth: Depth = 2
) -> HTMLResponse:
    """The page of what one thing came from and led to."""
    found = neighbourhood(stored, identifier, depth)
    commands = [
        pages.command(
            f"{direction.capitalize()} in the terminal",
            *("lineage", direction, found.run, found.id, "--depth", str(depth)),
        )
        for direction in ("upstream", "downstream")
    ]
    return pages.page(
        request,
        "lineage.html.j2",
        title=f"Lineage of {found.id[:14]}",
        crumbs=[Crumb("lineage", address("lineage", found.id))],
        commands=commands,
        found=found,
        depth=depth,
        most=MOST_STEPS,
    )
