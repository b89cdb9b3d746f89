"""Answers about graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers.reading import json_value, listed


def graph_color(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """A colour for each vertex, and different ones at the ends of each edge."""
    puzzle = metadata["puzzle"]
    colours = json_value(answer)
    if not isinstance(colours, dict):
        yield "The answer should be a JSON map of vertices to colors."
        return
    missing = [vertex for vertex in puzzle["vertices"] if str(vertex) not in colours]
    if missing:
        yield f"These vertices have no color: {listed(missing)}."
        return
    foreign = [vertex for vertex in puzzle["vertices"] if colours[str(vertex)] not in puzzle["color_options"]]
    if foreign:
        yield f"These vertices have a color that is not possible: {listed(foreign)}."
    for one, other in puzzle["edges"]:
        if colours[str(one)] == colours[str(other)]:
            yield f"Vertices {one} and {other} are joined by an edge and have the same color."
