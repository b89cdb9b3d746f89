"""`erl-pipeline config memory`: how much memory a configuration needs, and for what."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from command_line.options import ConfigFile, Json, Settings
from command_line.output import print_json, print_line, print_table

Tokens = Annotated[
    int | None,
    typer.Option(
        "--sequence-tokens",
        min=1,
        metavar="N",
        help="Tokens of a sequence that is being sampled, prompt and answer together.",
    ),
]


def memory(
    config: ConfigFile, settings: Settings = None, sequence_tokens: Tokens = None, json: Json = False
) -> None:
    """Estimate the memory that training and sampling need, without loading any weights."""
    from erl_pipeline.config.load import load_config
    from erl_pipeline.sizing.estimate import estimate_memory, model_size

    resolved = load_config(config, settings or [])
    size = model_size(resolved)
    parts = estimate_memory(resolved, size, sequence_tokens)
    places = dict.fromkeys(part.place for part in parts)
    totals = {place: sum(part.bytes for part in parts if part.place == place) for place in places}
    if json:
        print_json({"model": asdict(size), "parts": [asdict(part) for part in parts], "totals": totals})
        return
    rows = []
    for place in places:
        for part in parts:
            if part.place == place:
                rows.append({"where": place, "what": part.name, "GB": _gb(part.bytes), "bytes": part.reason})
        rows.append({"where": place, "what": "all", "GB": _gb(totals[place]), "bytes": ""})
    print_table(rows, left=("where", "what", "bytes"))
    print_line(
        "An estimate by arithmetic. The program, its libraries and an engine's working memory come on top."
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f}"
