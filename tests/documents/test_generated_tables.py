"""The generated sections of benchmarks/README.md are what their scripts make of the stored figures."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.documents.figures import NUMBER, RESULTS
from tests.documents.pages import ROOT

README = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
SECTIONS = {
    found["name"]: found["text"].strip()
    for found in re.finditer(r"<!-- begin (?P<name>\w+) -->(?P<text>.*?)<!-- end (?P=name) -->", README, re.S)
}
_COUNTS = re.compile(
    r"[\d,]+ (?:trajectories|iterations|requests|shards|calls|tokens a pass|tokens here)"
    r"|A checkpoint of \d+ MB|SmolLM2-135M"
)
"""Sizes of what was measured, which the scripts' options set."""


def compared(name: str) -> Callable[[Any], list[str]]:
    """The tables of a script that compares contenders, in one or several groups."""

    def tables(runs: Any) -> list[str]:
        measurements, script = (importlib.import_module(each) for each in ("measurements", name))
        groups = list(runs.values()) if isinstance(next(iter(runs.values())), dict) else [runs]
        columns = script.COLUMNS
        return [
            measurements.as_markdown(measurements.table(group, columns, columns[0], next(iter(group))))
            for group in groups
        ]

    return tables


def episode_work(runs: Any) -> list[str]:
    import measurements
    from episode_work import ROLLOUTS, TOOL, TOOL_COLUMNS, WORK_COLUMNS

    parts = (({name: runs[name] for name in ROLLOUTS}, WORK_COLUMNS), ({TOOL: runs[TOOL]}, TOOL_COLUMNS))
    return [
        measurements.as_markdown(
            [row[:-1] for row in measurements.table(part, columns, columns[0], next(iter(part)))]
        )
        for part, columns in parts
    ]


def history_growth(runs: Any) -> list[str]:
    import history_growth as script
    from measurements import as_markdown

    answers = {name: found for name, found in runs.items() if name in script.TITLES}
    around = {int(name.split()[-1]): found for name, found in runs.items() if name not in answers}
    count = len(next(iter(answers.values())))
    return [as_markdown(script._answers(answers, count)), as_markdown(script._growth(around))]


def iteration_growth(runs: Any) -> list[str]:
    import iteration_growth as script
    from measurements import as_markdown

    return [as_markdown(script.result_table({int(name.split()[-1]): found for name, found in runs.items()}))]


def page_speed(runs: Any) -> list[str]:
    import page_speed as script
    from measurements import as_markdown

    return [as_markdown(script._tables(runs)), script._resident(runs)]


def agent_curves(runs: Any) -> list[str]:
    import learning.agent_curves as script
    from measurements import as_markdown

    return [as_markdown(script.result_table(runs))]


def six_nights(runs: Any) -> list[str]:
    import learning.six_nights as script
    from measurements import as_markdown

    return [as_markdown(script.result_table(runs))]


def simulated(name: str) -> Callable[[Any], list[str]]:
    def tables(runs: Any) -> list[str]:
        import simulated_cluster as script
        from measurements import as_markdown

        return [as_markdown(getattr(script, name)(runs["rows"]))]

    return tables


OWN: dict[str, Callable[[Any], list[str]]] = {
    "agent_curves": agent_curves,
    "episode_work": episode_work,
    "history_growth": history_growth,
    "iteration_growth": iteration_growth,
    "page_speed": page_speed,
    "six_nights": six_nights,
    "shard_tails": compared("rollout_speed"),
    "simulated_cluster_here": simulated("rows_here"),
    "simulated_cluster_clusters": simulated("rows_of_clusters"),
    "simulated_cluster_iteration": simulated("rows_of_iterations"),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_made_from_the_stored_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    left = SECTIONS[name]
    if (RESULTS / f"{name}.json").exists():
        stored = json.loads((RESULTS / f"{name}.json").read_text())
        line = importlib.import_module("measurements").machine_line(stored["machine"])
        parts: Sequence[str] = [line, *OWN.get(name, compared(name))(stored["runs"])]
        for part in parts:
            assert part in left
            left = left.replace(part, "")
    # What is left says how much was measured; it holds no result.
    assert NUMBER.findall(_COUNTS.sub("", left)) == []
