"""`erl-pipeline schedule`: schedules flows of a run, which `erl-pipeline serve` runs."""

from __future__ import annotations

import json as json_format
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from command_line.options import DEFAULT_STORE, LONGEST_DAYS, Json, RunName, Store
from command_line.output import print_json, print_line, print_table
from command_line.serve import DEFAULT_PORT, DEVICE_LIMIT
from storage.errors import InputError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from flows.deployed import ScheduledFlow
    from flows.deployments import FlowName
    from storage.runs.run import Run


def parse_interval(text: str) -> timedelta:
    """A length of time from text such as `90s`, `20m`, `6h` or `1d`. Raises InputError for other text, and
    for more than `LONGEST_DAYS`: no calendar has twice that."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if found is None:
        raise InputError(f"--every {text!r} is not a time such as 90s, 20m, 6h or 1d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[found[2]]
    interval = timedelta(**{unit: int(found[1])})
    if interval > timedelta(days=LONGEST_DAYS):
        raise InputError(f"--every {text!r} is too long; allowed are up to {LONGEST_DAYS}d")
    return interval


class _AddIsDefault(TyperGroup):
    """`schedule RUN ...` means `schedule add RUN ...`; a run called `list` needs the long form."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["add", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Run flows of a run at given times: `schedule RUN --every 1d`, or list, pause, resume, remove.",
    no_args_is_help=True,
    cls=_AddIsDefault,
)

FlowChoice = Literal["iteration", "train", "evaluate", "learn", "maintain"]
Overlap = Literal["skip", "wait"]

Cron = Annotated[str | None, typer.Option(metavar="'M H D M W'", help="Times, such as '0 3 * * *'.")]
Every = Annotated[str | None, typer.Option(metavar="TIME", help="An interval: 90s, 20m, 6h or 1d.")]
Once = Annotated[bool, typer.Option("--once", help="Once, now; an existing schedule stays.")]
Timezone = Annotated[
    str | None, typer.Option(help="Time zone of --cron, such as Europe/Zurich; default: UTC.")
]
WhichFlow = Annotated[FlowChoice, typer.Option(help="What to run: one more iteration, or another flow.")]
OneFlow = Annotated[FlowChoice | None, typer.Option(help="Only this flow; default: all of the run.")]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="CONFIG",
        help="To begin a run, or change its runner, retention ...; for --flow learn: settings of serving.",
    ),
]
Iterations = Annotated[int | None, typer.Option(min=1, metavar="N", help="For --flow train: last iteration.")]
GarbageDays = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=LONGEST_DAYS,
        metavar="N",
        help="For --flow maintain: remove what no run reaches and is older.",
    ),
]
WhenOverlapping = Annotated[
    Overlap | None,
    typer.Option(help="What to do if the last one, or another process, is at work; default: skip."),
]
ConcurrencyLimit = Annotated[
    str | None,
    typer.Option(metavar="NAME|none", help="Limit of Prefect; one slot is held during work; default: gpu."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace an existing schedule.")]
OnlyStore = Annotated[str | None, typer.Option(metavar="URI", help="Only schedules of runs in this store.")]
Port = Annotated[
    int, typer.Option(min=1, max=65535, help="Port of `serve`, where PREFECT_API_URL is not set.")
]


@app.command()
def add(
    run: RunName,
    cron: Cron = None,
    every: Every = None,
    once: Once = False,
    timezone: Timezone = None,
    flow: WhichFlow = "iteration",
    config: Config = None,
    iterations: Iterations = None,
    garbage_days: GarbageDays = None,
    overlap: WhenOverlapping = None,
    concurrency_limit: ConcurrencyLimit = None,
    replace: Replace = False,
    store: Store = DEFAULT_STORE,
    port: Port = DEFAULT_PORT,
    json: Json = False,
) -> None:
    """Schedule a flow of a run. The word `add` may be left out."""
    if sum([cron is not None, every is not None, once]) != 1:
        raise InputError("say when, with one of --cron '0 3 * * *', --every 6h and --once")
    if iterations is not None and flow != "train":
        raise InputError(f"--iterations is for --flow train; --flow {flow} does not take it")
    if garbage_days is not None and flow != "maintain":
        raise InputError(f"--garbage-days is for --flow maintain; --flow {flow} does not take it")
    if timezone is not None and cron is None:
        raise InputError("--timezone is for --cron; an interval does not take it")
    if concurrency_limit is not None and flow == "maintain":
        raise InputError("--concurrency-limit is for flows that need a device; --flow maintain needs none")
    interval = None if every is None else parse_interval(every)
    begin = _to_begin(run, store, None if flow == "learn" else config)
    with _deployments(port) as client:
        from flows import deployments
        from flows.deployed import deployed

        schedule: Any = None
        if cron is not None:
            schedule = deployments.cron(cron, timezone or "UTC")
        elif interval is not None:
            schedule = deployments.every(interval)
        place = _place(store)
        there = deployments.refuse_taken(client, flow, run, place, replace=replace or once)
        kept = there if once else None
        if kept is not None and overlap not in (None, deployments.overlap_of(kept)):
            raise InputError(
                f"--once leaves flow {flow} of run {run} as it is deployed, with --overlap "
                f"{deployments.overlap_of(kept)}; leave out --overlap, or schedule it anew with --replace"
            )
        # Begin the run only now, so that a refused schedule leaves nothing behind.
        if begin is not None:
            begin()
        parameters: dict[str, Any] = {}
        if flow != "maintain" and (concurrency_limit is not None or kept is None):
            limit = concurrency_limit or DEVICE_LIMIT
            parameters["concurrency_limit"] = None if limit == "none" else limit
        if iterations is not None:
            parameters["iterations"] = iterations
        if flow == "learn" and config is not None:
            parameters["config"] = str(config.resolve())
        if garbage_days is not None:
            parameters["garbage_days"] = garbage_days
        replaced = kept is None and deployments.deploy(
            client, flow, run, place, schedule, overlap or "skip", parameters, Path.cwd(), replace=replace
        )
        made = deployments.run_once(client, flow, run, place, parameters) if once else None
        (row,) = [each for each in deployed(client) if (each.run, each.flow) == (run, flow)]
    if json:
        print_json({**_plain(row), "replaced": replaced, "flow_run": None if made is None else str(made.id)})
    elif made is not None:
        # Not by its name, which Prefect drew: when it begins, it is called after the run.
        print_line(f"Run {run}: flow {flow} is due now, as flow run {made.id}.")
    else:
        print_line(f"Run {run}: flow {flow} {row.schedule}; when one still runs: {row.overlap}.")


@app.command("list")
def list_schedules(store: OnlyStore = None, port: Port = DEFAULT_PORT, json: Json = False) -> None:
    """Show what is scheduled: when it is due, when it last succeeded, when and why it was last skipped."""
    with _deployments(port) as client:
        from flows.deployed import deployed

        rows = [row for row in deployed(client) if store is None or row.store == _place(store)]
    if json:
        print_json([_plain(row) for row in rows])
        return
    if not rows:
        print_line("Nothing is scheduled.")
        return
    table = [
        {
            "run": row.run,
            "flow": row.flow,
            "schedule": row.schedule or "by hand",
            "next": "paused" if row.paused else _time(row.next),
            "last success": _time(row.succeeded),
            "last skip": (f"{_time(row.skipped)}, {row.why_skipped}" if row.skipped else ""),
            "last due": _time(row.last),
            "how it ended": row.ended,
        }
        for row in rows
    ]
    print_table(table, left=list(table[0]))


def _add_command(action: Literal["pause", "resume", "remove"], done: str, what: str) -> None:
    """Add a command that applies an action to one flow of a run, or to all that are scheduled for it."""

    @app.command(action, help=what)
    def act(
        run: RunName,
        flow: OneFlow = None,
        store: OnlyStore = None,
        port: Port = DEFAULT_PORT,
        json: Json = False,
    ) -> None:
        chosen = _do(action, run, flow, store, port)
        if json:
            print_json({"run": run, "flows": chosen, "done": done})
            return
        for each in chosen:
            print_line(f"Run {run}: flow {each} is {done}.")


_add_command("pause", "paused", "Start no more flows of a run; a running one continues to its end.")
_add_command("resume", "resumed", "Continue a paused schedule.")
_add_command("remove", "removed", "Remove a schedule; the run and its artifacts are not touched.")


@contextmanager
def _deployments(port: int) -> Iterator[SyncPrefectClient]:
    """A client of the API that PREFECT_API_URL names, else of `serve` on this machine."""
    os.environ.setdefault("DO_NOT_TRACK", "1")
    from flows.deployments import connected
    from flows.local_server import configured_api

    url = configured_api() or f"http://127.0.0.1:{port}/api"
    with connected(url) as client:
        yield client


def _do(action: str, run: str, flow: FlowName | None, store: str | None, port: int) -> list[FlowName]:
    """Apply an action; returns the flows that it was applied to.

    Raises InputError when nothing is scheduled, or when it is for a run of another store than `store`.
    """
    with _deployments(port) as client:
        from flows import deployments

        chosen = deployments.of_run(client, run) if flow is None else [flow]
        if store is not None:
            for each in chosen:
                deployments.require_store(client, each, run, _place(store))
        if not chosen:
            raise InputError(f"nothing is scheduled for run {run}; see: erl-pipeline schedule list")
        for each in chosen:
            getattr(deployments, action)(client, each, run)
    return chosen


def _place(store: str) -> str:
    """A store as deployments name it: a URI or an absolute path."""
    return store if "://" in store else str(Path(store).resolve())


def _to_begin(run: str, store: str, config: Path | None) -> Callable[[], object] | None:
    """A function that begins the run, or stores the settings that it goes on with; None without a file.

    Raises InputError for a run that neither exists nor has a configuration, ConfigError for a run that exists
    with other settings.
    """
    from erl_pipeline.config.loading import load_config
    from erl_pipeline.runs.config import is_blank, keep_settings, refuse_other_settings
    from storage.runs.run import RunStore

    runs = RunStore(store)
    if config is None:
        runs.open(run)
        return None
    settings = load_config(config, [f"name={json_format.dumps(run)}"])
    resolved = settings.model_dump(mode="json")
    if run in runs.list():
        stored = runs.open(run)
        if stored.config != resolved and is_blank(store, stored):
            return lambda: _begin_again(stored, resolved)
        refuse_other_settings(stored, settings)
        return lambda: keep_settings(stored, settings)
    return lambda: runs.create(run, resolved)


def _begin_again(run: Run, config: Mapping[str, Any]) -> None:
    with run.lock():
        run.begin_again(config)


def _plain(row: ScheduledFlow) -> dict[str, Any]:
    values = asdict(row)
    return {name: each.isoformat() if isinstance(each, datetime) else each for name, each in values.items()}


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
