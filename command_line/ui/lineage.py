"""What one thing came from and led to, a few steps away, laid out in columns; and the pages that show it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse

from command_line.ui.pages import AVisit, Crumb, address
from command_line.ui.stored import Stored
from storage.artifacts.manifest import Manifest
from storage.lineage.reach import Direction, Reach, Reached, near

MOST_STEPS = 6
_MOST_SHOWN = 40

DIRECTIONS: tuple[Direction, ...] = ("upstream", "downstream")


@dataclass(frozen=True)
class Neighbour(Reached):
    """A thing in a column."""

    title: str = ""
    detail: str = ""


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
    came, led = (
        near(stored.artifacts, graph, lambda: stored.lineage.places(graph), identifier, direction, depth)
        for direction in DIRECTIONS
    )
    manifest = graph.manifests.get(came.id) if came.kind == "artifact" else None
    holders = [
        thing.facts["run"] for thing in came.things if thing.via == came.id and thing.kind == "artifact"
    ]
    run = holders[0] if manifest is None else manifest.run
    return Neighbourhood(came.kind, came.id, run, manifest, _steps(came), _steps(led), graph.manifests)


def _described(kind: str, facts: Mapping[str, Any]) -> tuple[str, str]:
    if kind == "artifact":
        at = facts.get("iteration")
        place = "start" if at is None else f"iteration {at}"
        return str(facts.get("stage", "not in the store")), f"{facts['run']}, {place}" if facts else ""
    title = str(facts["role"]).replace("_", " ") if "role" in facts else kind.replace("_", " ")
    task = facts.get("task_id") or facts.get("task_type") or ""
    return title, f"{task}, iteration {facts.get('iteration')}"


def _steps(reach: Reach) -> list[LineageStep]:
    by_depth: dict[int, list[Neighbour]] = {}
    for thing in reach.things:
        title, detail = _described(thing.kind, thing.facts)
        by_depth.setdefault(thing.depth, []).append(Neighbour(**vars(thing), title=title, detail=detail))
    return [
        LineageStep(depth, things[:_MOST_SHOWN], max(0, len(things) - _MOST_SHOWN))
        for depth, things in sorted(by_depth.items())
    ]


router = APIRouter()

Depth = Annotated[int, Query(ge=1, le=MOST_STEPS)]


@router.get("/artifacts/{artifact_id}")
def artifact(artifact_id: str, here: AVisit) -> HTMLResponse:
    """The manifest of an artifact."""
    stored = here.stored
    found = stored.artifacts.resolve(artifact_id)
    manifest = stored.artifacts.find(found)
    assert manifest is not None
    near = neighbourhood(stored, found, 1)
    commands = [here.command("Its lineage in the terminal", "lineage", "upstream", manifest.run, found)]
    if manifest.kind == "checkpoint" and manifest.iteration is not None:
        commands += [
            here.command("What it was trained on", "lineage", "trained-on", found),
            here.command(
                "Evaluate it", "evaluate", manifest.run, "--checkpoint", found, "--tasks", "generated"
            ),
            here.command(
                "Write it to a folder", *("export", manifest.run, "--checkpoint", found, "--output", "FOLDER")
            ),
        ]
    path, at = ("runs", manifest.run), manifest.iteration
    return here.page(
        "artifact.html.j2",
        f"{manifest.stage} {found[:12]}",
        [
            Crumb(manifest.run, address(*path)),
            *([] if at is None else [Crumb(f"iteration {at}", address(*path, "iterations", at))]),
            Crumb(manifest.stage, address("artifacts", found)),
        ],
        commands=commands,
        manifest=manifest,
        pruned={file.path: file for file in stored.artifacts.pruned(manifest).files},
        near=near,
    )


@router.get("/lineage/{identifier}")
def lineage(identifier: str, here: AVisit, depth: Depth = 2) -> HTMLResponse:
    """The page of what one thing came from and led to."""
    found = neighbourhood(here.stored, identifier, depth)
    commands = [
        here.command(
            f"{direction.capitalize()} in the terminal",
            *("lineage", direction, found.run, found.id, "--depth", str(depth)),
        )
        for direction in DIRECTIONS
    ]
    return here.page(
        "lineage.html.j2",
        f"Lineage of {found.id[:14]}",
        [Crumb("lineage", address("lineage", found.id))],
        commands=commands,
        found=found,
        depth=depth,
        most=MOST_STEPS,
    )
