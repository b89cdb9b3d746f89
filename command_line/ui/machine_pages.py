"""What a run used of its machine over time, and which stages were at work then."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import ValidationError
from starlette.responses import HTMLResponse

from command_line.ui.log_pages import read_tail
from command_line.ui.pages import ARunVisit
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.runs.log import log_file
from erl_pipeline.runs.machine_use import MACHINE_LOG, SECONDS, MachineUse

router = APIRouter(prefix="/runs/{name}")

_LANES = 6
"""Most stages that are drawn, one for each colour."""
_POINTS = 600
"""Most points of a line, and most pieces in which a stage's times are drawn."""
_BREAK_SECONDS = 6 * SECONDS
"""Where samples are further apart, no process worked on the run in between; that time is left out."""
_MOST_BYTES = 12_000_000
_AXIS = "minutes of work"


@dataclass(frozen=True)
class StageTime:
    """The artifacts that the run itself made in a stage, and the seconds that they took together. `lane` is
    the number of its colour, None for a stage that is not drawn."""

    stage: str
    artifacts: int
    seconds: float
    lane: int | None


def read_samples(text: str) -> list[MachineUse]:
    """The samples in a file, the oldest first, without lines that a kill or a full disk cut short."""
    found = []
    for line in text.splitlines():
        try:
            found.append(MachineUse.model_validate_json(line))
        except ValidationError:
            continue
    return found


def stage_times(history: Sequence[StageRecord]) -> list[StageTime]:
    """The stages, the longest first."""
    taken: dict[str, list[float]] = {}
    for each in history:
        if not each.reused:
            taken.setdefault(each.stage, []).append(each.seconds)
    longest = sorted(taken.items(), key=lambda each: -sum(each[1]))
    return [
        StageTime(stage, len(seconds), sum(seconds), place if place <= _LANES else None)
        for place, (stage, seconds) in enumerate(longest, start=1)
    ]


def machine_numbers(samples: Sequence[MachineUse], history: Sequence[StageRecord]) -> dict[str, Any]:
    """Charts over the minutes of work, in the form that the drawing script reads. `spans` are lane, begin and
    end of the stages at work."""
    if not samples:
        return {"x": _AXIS, "charts": [], "spans": []}
    times = np.array([each.at.timestamp() for each in samples])
    steps = np.diff(times, prepend=times[:1])
    worked = np.cumsum(np.where(steps > _BREAK_SECONDS, 0.0, steps)) / 60
    parts = np.array_split(np.arange(len(samples)), min(len(samples), _POINTS))

    def line(label: str, colour: int, values: Sequence[float]) -> dict[str, Any]:
        known = np.asarray(values, dtype=float)
        # A GPU is not in samples of another machine, nor in those of a moment without an answer.
        there = [found for part in parts if len(found := part[~np.isnan(known[part])])]
        means = [known[part].mean().item() for part in there]
        x = [worked[part].mean().item() for part in there]
        return {"label": label, "colour": colour, "dashes": 0, "x": x, "y": means, "low": None, "high": None}

    def of_run(run: str, machine: str, scale: float) -> list[dict[str, Any]]:
        named = (("this run", run), ("all of the machine", machine))
        return [
            line(label, colour, [getattr(each, name) / scale for each in samples])
            for colour, (label, name) in enumerate(named, start=1)
        ]

    shown = [
        ("Processors", "processors at work", of_run("cores", "machine_cores", 1.0)),
        ("Memory", "GB", of_run("memory", "machine_memory", 1e9)),
    ]
    gpus = range(max(len(each.gpus) for each in samples))
    for title, unit, name, scale in (
        ("GPU use", "share of time", "share", 1.0),
        ("GPU memory", "GB", "memory", 1e9),
    ):
        lines = [
            line(
                f"GPU {gpu}",
                gpu % _LANES + 1,
                [getattr(each.gpus[gpu], name) / scale if gpu < len(each.gpus) else nan for each in samples],
            )
            for gpu in gpus
        ]
        shown.append((title, unit, lines))
    charts = [
        {"title": title, "unit": unit, "note": unit, "share": title == "GPU use", "series": lines}
        for title, unit, lines in shown
        if lines
    ]
    return {"x": _AXIS, "charts": charts, "spans": _spans(times, worked, history)}


def _spans(
    times: np.ndarray, worked: np.ndarray, history: Sequence[StageRecord]
) -> list[tuple[int, float, float]]:
    """Those within the samples; spans of a stage that lie closely together are one."""
    lanes = {each.stage: each.lane for each in stage_times(history)}
    near = (worked[-1] - worked[0]) / _POINTS
    found: dict[int, list[tuple[int, float, float]]] = {}
    for record in sorted(history, key=lambda each: each.manifest.started_at):
        begun, ended = record.manifest.started_at.timestamp(), record.manifest.finished_at.timestamp()
        lane = lanes.get(record.stage)
        if record.reused or lane is None or ended < times[0] or begun > times[-1]:
            continue
        begin, end = np.interp((begun, ended), times, worked).tolist()
        of_lane = found.setdefault(lane, [])
        if of_lane and begin - of_lane[-1][2] <= near:
            begin, end = of_lane[-1][1], max(end, of_lane.pop()[2])
        of_lane.append((lane, begin, end))
    return [span for lane in sorted(found) for span in found[lane]]


@router.get("/machine")
def machine(here: ARunVisit) -> HTMLResponse:
    """The curves of processors, memory and GPUs of the machine that drives a run."""
    file = log_file(here.stored.uri, here.name, MACHINE_LOG)
    return here.page(
        "machine.html.j2",
        "Machine",
        [here.crumb("machine", "machine")],
        sampled=bool(read_tail(file)),
        stages=stage_times(here.run.history),
        at_work=here.stored.holder(here.name) is not None,
        path=str(file),
    )


@router.get("/machine/numbers")
def numbers(here: ARunVisit) -> dict[str, Any]:
    """The curves as numbers."""
    text = read_tail(log_file(here.stored.uri, here.name, MACHINE_LOG), _MOST_BYTES)
    return machine_numbers(read_samples(text), here.run.history)
