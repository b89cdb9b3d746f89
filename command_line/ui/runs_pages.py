"""The table of runs, and several runs side by side: curves, settings, code, where two of them part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from command_line.ui.differences import code_differences, varied_settings
from command_line.ui.filters import AddressError
from command_line.ui.pages import AVisit, Crumb, address
from command_line.ui.stored import RunStatus, RunView, Stored
from erl_pipeline.evaluation.first_difference import first_divergence
from erl_pipeline.evaluation.history import CurvePoint
from erl_pipeline.views.report.curves import AXES, Axis, ChartedRun, curves_as_numbers
from storage.errors import StoreError
from storage.runs.notes import RunNotes, read_notes

SortKey = Literal["name", "method", "done", "score", "age"]
_MOST_SETTINGS = 4
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 24


@dataclass(frozen=True)
class RunLine:
    """A run in the table; `problem` says why the run or its configuration cannot be read."""

    name: str
    problem: str = ""
    method: str = ""
    environment: str = ""
    status: RunStatus = "other"
    done: int = 0
    total: int = 0
    score: CurvePoint | None = None
    spark: str = ""
    age: datetime | None = None
    notes: RunNotes = field(default_factory=RunNotes)
    settings: tuple[str, ...] = ()
    more_settings: int = 0


def run_lines(stored: Stored, words: str) -> list[RunLine]:
    """The runs whose name contains `words`."""
    opened: dict[str, RunView | str] = {}
    notes: dict[str, RunNotes] = {}
    for name in stored.names():
        if words.lower() in name.lower():
            try:
                notes[name] = read_notes(stored.uri, name)
                opened[name] = stored.run(name)
            except StoreError as error:
                opened[name] = str(error)
    differing = _differing([run for run in opened.values() if isinstance(run, RunView)])
    return [
        RunLine(name, problem=run, notes=notes.get(name, RunNotes()))
        if isinstance(run, str)
        else _line(stored, run, notes[name], differing.get(name, ()))
        for name, run in opened.items()
    ]


def _differing(runs: Sequence[RunView]) -> dict[str, list[str]]:
    """Run -> its values of the settings that differ between runs of its method and environment.

    Only runs of one method and environment are compared: between others nearly all settings differ.
    """
    kinds: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        if run.config is not None:
            kind = run.config.method.type, run.config.environment.type
            kinds.setdefault(kind, {})[run.name] = run.run.config
    found: dict[str, list[str]] = {}
    for configs in kinds.values():
        for key, values in varied_settings(configs).items():
            for name, value in values.items():
                found.setdefault(name, []).append(f"{key}: {value}")
    return found


def _line(stored: Stored, run: RunView, notes: RunNotes, settings: Sequence[str]) -> RunLine:
    config = run.config
    return RunLine(
        run.name,
        problem=run.problem,
        method="" if config is None else config.method.type,
        environment="" if config is None else config.environment.type,
        status=stored.status(run),
        done=run.done,
        total=run.total,
        score=run.curve[-1] if run.curve else None,
        spark=spark_points([point.success for point in run.curve]),
        age=run.last_recorded,
        notes=notes,
        settings=tuple(settings[:_MOST_SETTINGS]),
        more_settings=max(0, len(settings) - _MOST_SETTINGS),
    )


def spark_points(values: Sequence[float]) -> str:
    """Values in [0, 1] as the points of a small SVG line; empty for fewer than two."""
    if len(values) < 2:
        return ""
    step = _SPARK_WIDTH / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{_SPARK_HEIGHT - 2 - value * (_SPARK_HEIGHT - 4):.1f}"
        for index, value in enumerate(values)
    )


def _order(line: RunLine, sort: SortKey) -> tuple[Any, ...]:
    never = datetime.min.replace(tzinfo=UTC)
    value: Any = {
        "name": line.name,
        "method": line.method,
        "done": line.done,
        "score": -1.0 if line.score is None else line.score.success,
        "age": line.age or never,
    }[sort]
    return value, line.name


_CSV = (
    "run", "state", "method", "environment", "done", "total", "success", "low", "high", "changed", "tags",
    "note", "problem",
)  # fmt: skip


def _plain(line: RunLine) -> dict[str, Any]:
    """A run in the table, for programs; `low` and `high` are the bounds of the 95 % interval of `success`."""
    score = line.score
    return {
        "run": line.name,
        "state": line.status,
        "method": line.method,
        "environment": line.environment,
        "done": line.done,
        "total": line.total,
        "success": score and score.success,
        "low": score and score.low,
        "high": score and score.high,
        "changed": line.age,
        "tags": " ".join(line.notes.tags),
        "note": line.notes.note,
        "problem": line.problem,
    }


router = APIRouter()


@router.get("/")
def runs(
    here: AVisit,
    q: str = "",
    method: str = "",
    status: str = "",
    tag: str = "",
    sort: SortKey = "age",
    rising: bool = False,
) -> Response:
    """The runs of the store: those whose name contains `q`, of a method and a state and with a tag if these
    are given."""
    named = run_lines(here.stored, q)
    lines = [
        line
        for line in sorted(named, key=lambda line: _order(line, sort), reverse=not rising)
        if method in ("", line.method) and status in ("", line.status) and (not tag or tag in line.notes.tags)
    ]
    if here.wants_csv:
        return here.csv("runs", _CSV, map(_plain, lines))
    return here.page(
        "runs.html.j2",
        "Runs",
        commands=[here.command("Train another run", "train", "CONFIG")],
        lines=lines,
        q=q,
        method=method,
        status=status,
        tag=tag,
        tags=sorted({each for line in named for each in line.notes.tags}),
        sort=sort,
        rising=rising,
        methods=sorted({line.method for line in named if line.method}),
    )


MOST_RUNS = 12

Chosen = Annotated[list[str], Query()]


@router.get("/compare")
def compare(
    here: AVisit,
    run: Chosen = [],  # noqa: B006 (FastAPI copies it)
    x: Axis = "iteration",
    smooth: Annotated[float, Query(ge=0, lt=1)] = 0.0,
) -> HTMLResponse:
    """The page that compares the chosen runs."""
    names = list(dict.fromkeys(run))
    if not 1 <= len(names) <= MOST_RUNS:
        raise AddressError(f"Choose 1 to {MOST_RUNS} runs in the table of runs; {len(names)} are chosen.")
    runs = [here.stored.run(name) for name in names]
    settings = varied_settings({each.name: each.run.config for each in runs})
    commands = []
    if len(runs) == 2:
        commands = [
            here.command("The same in the terminal", "diff", *names),
            here.command("Where they diverge", "diff", *names, "--first-divergence"),
        ]
    return here.page(
        "compare.html.j2",
        " and ".join(names) if len(names) < 3 else f"{len(names)} runs",
        [Crumb("compare", f"{here.request.url.path}?{here.request.url.query}")],
        commands=commands,
        runs=runs,
        settings=settings,
        code=code_differences(runs),
        x=x,
        axes=AXES,
        smooth=smooth,
    )


@router.get("/curves")
def curves(here: AVisit, run: Chosen = [], x: Axis = "iteration") -> dict[str, Any]:  # noqa: B006
    """The curves of runs, as numbers."""
    runs = [here.stored.run(name) for name in dict.fromkeys(run)][:MOST_RUNS]
    if len(runs) == 1:
        return here.stored.kept(runs[0].name, f"curves by {x}", lambda: _numbers(runs, x))
    return _numbers(runs, x)


def _numbers(runs: Sequence[RunView], x: Axis) -> dict[str, Any]:
    return curves_as_numbers([ChartedRun(each.name, each.history, each.columns) for each in runs], x)


@router.get("/divergence")
def divergence(a: str, b: str, here: AVisit) -> HTMLResponse:
    """The first artifact, row and token, or tensor, in which two runs differ."""
    stored = here.stored
    runs = [stored.run(name) for name in (a, b)]
    mark = stored.mark(b)
    found = stored.kept(
        a,
        f"divergence from {b} {mark}",
        lambda: first_divergence(stored.artifacts, *(run.history for run in runs)),
    )
    commands = [here.command("The same in the terminal", "diff", a, b, "--first-divergence")]
    if found.parting is not None and found.parting.place.iteration:
        place = found.parting.place
        commands.append(
            here.command(
                "Compute the first again, compare bytes",
                *("replay", a, "--from", place.stage, "--iteration", str(place.iteration)),
            )
        )
    return here.page(
        "divergence.html.j2",
        f"Where {a} and {b} diverge",
        [
            Crumb("compare", address("compare", run=[a, b])),
            Crumb("first divergence", address("divergence", a=a, b=b)),
        ],
        commands=commands,
        runs=runs,
        found=found,
    )
