"""A lineage grid as SVG, and as an HTML page that shows the details of a chosen box."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Literal
from xml.etree import ElementTree

from erl_pipeline.views.lineage.grid import Box, Grid
from storage.artifacts.recipe import ArtifactKind

BOX_WIDTH, COLUMN_GAP, LABEL_WIDTH, MARGIN = 172.0, 34.0, 92.0, 20.0
LINE_HEIGHT, LANE_HEIGHT, LANE_MARGIN, HEADER = 15.0, 11.0, 16.0, 66.0

LINE_CHARACTERS = 27
"""How many characters fit into a line of a box; the whole text shows when the pointer rests on the box."""

_COLOURS: Mapping[ArtifactKind, str] = {
    "checkpoint": "policy",
    "memory": "memory",
    "rollouts": "rollouts",
    "trajectories": "rollouts",
    "sft_dataset": "dataset",
    "tasks": "tasks",
}
"""The colour of an arrow by the kind of artifact that it comes from; `other` for all other kinds."""
_WORDS = {
    "policy": "policy",
    "memory": "memory",
    "rollouts": "rollouts",
    "dataset": "distillation data",
    "tasks": "tasks",
    "other": "other inputs",
}


def draw(grid: Grid, suffix: str) -> str:
    """The text of an `.svg` or `.html` file; both are complete in themselves."""
    return _page(grid) if suffix == ".html" else _svg(grid, standalone=True)


@dataclass(frozen=True)
class _Place:
    x: float
    y: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True)
class _Route:
    """Arrows of one colour that leave one box and share a lane, like a bus line with several stops."""

    source: int
    colour: str
    targets: tuple[int, ...]
    row: int
    """The row above which the lane runs."""
    lane: int


def _svg(grid: Grid, *, standalone: bool) -> str:
    straight, routes = _routes(grid)
    places, height = _places(grid, routes)
    width = 2 * MARGIN + LABEL_WIDTH + grid.columns * (BOX_WIDTH + COLUMN_GAP) - COLUMN_GAP
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:g} {height:g}",
            "width": f"{width:g}",
            "height": f"{height:g}",
            "class": "lineage",
            "role": "img",
            "aria-label": f"{grid.title}: {grid.caption}",
        },
    )
    colours = [colour for colour in _WORDS if colour in {_colour(arrow.kind) for arrow in grid.arrows}]
    if standalone:
        ElementTree.SubElement(svg, "style").text = _resource("drawing.css")
        ElementTree.SubElement(
            svg, "rect", {"class": "ground", "width": f"{width:g}", "height": f"{height:g}"}
        )
    _arrow_heads(svg, colours)
    _text(svg, grid.title, MARGIN, 26, "title")
    _text(svg, grid.caption, MARGIN, 44, "caption")
    _legend(svg, colours, any(box.shared_with for box in grid.boxes), width)
    for row, label in enumerate(grid.rows):
        tops = [place for box, place in zip(grid.boxes, places, strict=True) if box.row == row]
        _text(svg, label, MARGIN, tops[0].y + 20, "row")
    for source, target, colour in straight:
        start, end = places[source], places[target]
        y = min(start.middle, end.middle)
        _path(svg, f"M{start.x + BOX_WIDTH:g} {y:g} H{end.x - 2:g}", colour, source, [target])
    _draw_routes(svg, grid, routes, places)
    for number, (box, place) in enumerate(zip(grid.boxes, places, strict=True)):
        _draw_box(svg, number, box, place)
    return ElementTree.tostring(svg, encoding="unicode")


def _routes(grid: Grid) -> tuple[list[tuple[int, int, str]], list[_Route]]:
    """The straight arrows, between neighbours in a row, and the routes of all other arrows."""
    taken = {(box.row, box.column) for box in grid.boxes}
    straight: dict[tuple[int, int, str], None] = {}
    buses: dict[tuple[int, int, str], dict[int, None]] = {}
    for arrow in grid.arrows:
        source, target = grid.boxes[arrow.source], grid.boxes[arrow.target]
        between = range(source.column + 1, target.column)
        colour = _colour(arrow.kind)
        if (
            source.row == target.row
            and source.column < target.column
            and not any((source.row, column) in taken for column in between)
        ):
            straight[arrow.source, arrow.target, colour] = None
        else:
            buses.setdefault((target.row, arrow.source, colour), {})[arrow.target] = None
    routes, lanes = [], dict[int, int]()
    # Lanes that come from the row above are first, so that they do not cross lanes that begin in this row.
    for (row, source_number, colour), targets in sorted(
        buses.items(), key=lambda bus: (bus[0][0], grid.boxes[bus[0][1]].row, -grid.boxes[bus[0][1]].column)
    ):
        routes.append(_Route(source_number, colour, tuple(targets), row, lanes.get(row, 0)))
        lanes[row] = lanes.get(row, 0) + 1
    return list(straight), routes


def _places(grid: Grid, routes: list[_Route]) -> tuple[list[_Place], float]:
    """The position of each box, and the height of the drawing."""
    y = HEADER
    tops, heights = [], []
    for row in range(len(grid.rows)):
        y += LANE_MARGIN * 2 + LANE_HEIGHT * sum(route.row == row for route in routes)
        lines = max(len(box.lines) + bool(box.shared_with) for box in grid.boxes if box.row == row)
        tops.append(y)
        heights.append((lines + 1) * LINE_HEIGHT + 14)
        y += heights[-1]
    places = [
        _Place(MARGIN + LABEL_WIDTH + box.column * (BOX_WIDTH + COLUMN_GAP), tops[box.row], heights[box.row])
        for box in grid.boxes
    ]
    return places, y + MARGIN


def _draw_routes(svg: ElementTree.Element, grid: Grid, routes: list[_Route], places: list[_Place]) -> None:
    arriving: dict[int, list[_Route]] = {}
    for route in routes:
        for target in route.targets:
            arriving.setdefault(target, []).append(route)
    leaving: dict[tuple[int, bool], list[_Route]] = {}
    for route in routes:
        leaving.setdefault((route.source, grid.boxes[route.source].row == route.row), []).append(route)
    tops = {box.row: place.y for box, place in zip(grid.boxes, places, strict=True)}
    lanes = {row: sum(route.row == row for route in routes) for row in range(len(grid.rows))}
    for route in routes:
        start = places[route.source]
        lane = tops[route.row] - LANE_MARGIN - (lanes[route.row] - 1 - route.lane) * LANE_HEIGHT
        upward = grid.boxes[route.source].row == route.row
        siblings = leaving[route.source, upward]
        # Arrows enter a box on the left three quarters of its top edge, and leave near the right end of it,
        # or from the bottom edge if they go to the next row.
        out = (
            start.x + BOX_WIDTH - 10 - 9 * siblings.index(route)
            if upward
            else (start.x + BOX_WIDTH / 2 + 9 * siblings.index(route))
        )
        y = start.y if upward else start.y + start.height
        for target in route.targets:
            place = places[target]
            ports = arriving[target]
            into = place.x + 0.75 * BOX_WIDTH * (ports.index(route) + 1) / (len(ports) + 1)
            path = f"M{out:g} {y:g} V{lane:g} H{into:g} V{place.y - 2:g}"
            _path(svg, path, route.colour, route.source, [target])


def _draw_box(svg: ElementTree.Element, number: int, box: Box, place: _Place) -> None:
    classes = [
        "box",
        *(["policy"] if box.kind == "checkpoint" else []),
        *(["shared"] if box.shared_with else []),
    ]
    classes += ["chosen"] if box.chosen else []
    group = ElementTree.SubElement(
        svg, "g", {"class": " ".join(classes), "id": f"box-{number}", "tabindex": "0"}
    )
    ElementTree.SubElement(group, "title").text = "\n".join(f"{name}: {value}" for name, value in box.facts)
    if len(box.artifact_ids) > 1:
        _rect(group, place.x + 5, place.y - 5, place.height, "behind")
    _rect(group, place.x, place.y, place.height, "front")
    name = box.stage if len(box.artifact_ids) == 1 else f"{box.stage} ×{len(box.artifact_ids)}"
    y = place.y + LINE_HEIGHT + 4
    _text(group, name, place.x + 10, y, "stage")
    shared = [f"shared with {_some(box.shared_with)}"] if box.shared_with else []
    for index, line in enumerate([*box.lines, *shared], start=1):
        kind = "sharing" if index > len(box.lines) else "id" if index == 1 else "line"
        _text(group, _clipped(line), place.x + 10, y + index * LINE_HEIGHT, kind)


def _legend(svg: ElementTree.Element, colours: list[str], shared: bool, width: float) -> None:
    words = [(colour, _WORDS[colour]) for colour in colours]
    x = width - MARGIN - sum(42 + 7.5 * len(word) for _, word in words) - (150 if shared else 0)
    x = max(x, MARGIN + 420)
    for colour, word in words:
        _path(svg, f"M{x:g} 40 H{x + 22:g}", colour, None, [])
        _text(svg, word, x + 28, 44, "legend")
        x += 42 + 7.5 * len(word)
    if shared:
        ElementTree.SubElement(
            svg,
            "rect",
            {"class": "key shared", "x": f"{x:g}", "y": "33", "width": "22", "height": "13", "rx": "3"},
        )
        _text(svg, "shared by runs", x + 28, 44, "legend")


def _arrow_heads(svg: ElementTree.Element, colours: list[str]) -> None:
    definitions = ElementTree.SubElement(svg, "defs")
    for colour in colours:
        marker = ElementTree.SubElement(
            definitions,
            "marker",
            {
                "id": f"head-{colour}",
                "viewBox": "0 0 8 8",
                "refX": "6",
                "refY": "4",
                "markerWidth": "7",
                "markerHeight": "7",
                "orient": "auto",
                "markerUnits": "userSpaceOnUse",
            },
        )
        ElementTree.SubElement(marker, "path", {"d": "M0 0.5 L8 4 L0 7.5 Z", "class": f"head {colour}"})


def _path(svg: ElementTree.Element, path: str, colour: str, source: int | None, targets: list[int]) -> None:
    attributes = {"d": path, "class": f"arrow {colour}", "marker-end": f"url(#head-{colour})"}
    if source is not None:
        attributes |= {"data-source": str(source), "data-target": " ".join(map(str, targets))}
    ElementTree.SubElement(svg, "path", attributes)


def _rect(parent: ElementTree.Element, x: float, y: float, height: float, kind: str) -> None:
    size = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{BOX_WIDTH:g}", "height": f"{height:g}", "rx": "6"}
    ElementTree.SubElement(parent, "rect", {"class": kind, **size})


def _text(parent: ElementTree.Element, text: str, x: float, y: float, kind: str) -> None:
    element = ElementTree.SubElement(parent, "text", {"x": f"{x:g}", "y": f"{y:g}", "class": kind})
    element.text = text


def _clipped(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…"


def _colour(kind: ArtifactKind) -> str:
    return _COLOURS.get(kind, "other")


def _some(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} runs"


def _page(grid: Grid) -> str:
    boxes = [
        {"stage": box.stage, "row": grid.rows[box.row], "facts": box.facts, "shared": box.shared_with}
        for box in grid.boxes
    ]
    arrows = [[arrow.source, arrow.target, arrow.name] for arrow in grid.arrows]
    # A script element ends at the first `</`, even inside a JSON string.
    data = json.dumps({"boxes": boxes, "arrows": arrows}, ensure_ascii=False).replace("</", "<\\/")
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(grid.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_resource('drawing.css')}</style></head><body>\n"
        f"<main>{_svg(grid, standalone=False)}</main>\n"
        '<aside id="details"><p>Choose a box to see what it is, what it was made from and what was made '
        "with it.</p></aside>\n"
        f'<script type="application/json" id="lineage">{data}</script>\n'
        f"<script>{_resource('drawing.js')}</script></body></html>\n"
    )


def _resource(name: Literal["drawing.css", "drawing.js"]) -> str:
    return files("erl_pipeline.views.lineage").joinpath(name).read_text(encoding="utf-8")
