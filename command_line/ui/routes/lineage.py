"""Artifacts: their manifests, what they came from and what they led to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from command_line.ui.lineage import MOST_STEPS, neighbourhood
from command_line.ui.pages import Crumb, address
from command_line.ui.routes.common import ThePages, TheStore

router = APIRouter()

Depth = Annotated[int, Query(ge=1, le=MOST_STEPS)]


@router.get("/artifacts/{artifact_id}")
def artifact(request: Request, artifact_id: str, stored: TheStore, pages: ThePages) -> HTMLResponse:
    """The manifest of an artifact."""
    found = stored.artifacts.resolve(artifact_id)
    manifest = stored.artifacts.find(found)
    assert manifest is not None
    near = neighbourhood(stored, found, 1)
    commands = [
        pages.command("Its lineage in the terminal", "lineage", "upstream", manifest.run, found),
    ]
    if manifest.kind == "checkpoint" and manifest.iteration is not None:
        commands += [
            pages.command("What it was trained on", "lineage", "trained-on", found),
            pages.command(
                "Evaluate it", "evaluate", manifest.run, "--checkpoint", found, "--tasks", "generated"
            ),
            pages.command(
                "Write it to a folder",
                *("export", manifest.run, "--checkpoint", found, "--output", "FOLDER"),
            ),
        ]
    return pages.page(
        request,
        "artifact.html.j2",
        title=f"{manifest.stage} {found[:12]}",
        crumbs=[
            Crumb(manifest.run, address("runs", manifest.run)),
            *(
                []
                if manifest.iteration is None
                else [
                    Crumb(
                        f"iteration {manifest.iteration}",
                        address("runs", manifest.run, "iterations", manifest.iteration),
                    )
                ]
            ),
            Crumb(manifest.stage, address("artifacts", found)),
        ],
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
