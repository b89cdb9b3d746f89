"""`erl-pipeline serve`: a Prefect server with its page, and a worker that runs what is scheduled."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from command_line.interruption import StopRequest, call_interruptibly
from command_line.output import counted

if TYPE_CHECKING:
    from flows.worker_link import Message

DEFAULT_PORT = 4200
"""The default port of Prefect's own server too."""

DEVICE_LIMIT = "gpu"
"""The concurrency limit from which scheduled flows take a slot by default."""

Port = Annotated[int, typer.Option(min=0, max=65535, help="Where the server listens; 0: a free port.")]
Host = Annotated[str, typer.Option(help="Address to listen on; whoever reaches it can start flows.")]
Worker = Annotated[
    str | None, typer.Option(metavar="NAME", help="Its name, different on each machine; default: USER@HOST.")
]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="Flow runs at once, including waiting ones.")]
Gpus = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Slots of the limit `gpu`; default: as it was, or 1.")
]
MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics there, under /metrics.")
]


def serve(
    port: Port = DEFAULT_PORT,
    host: Host = "127.0.0.1",
    worker: Worker = None,
    limit: Limit = 4,
    gpus: Gpus = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Run scheduled flows until Ctrl-C: a Prefect server with its page, and a worker.

    If PREFECT_API_URL is set, the worker works for that server, and no server is started, unless the variable
    names the address of this one.
    """
    # Prefect's client reports usage to its makers unless this is set before the import.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    console = sys.stderr  # kept here, since the worker redirects its output to a file

    def tell(line: str) -> None:
        with suppress(OSError):  # The terminal is gone, or the disk is full: flow runs go on all the same.
            print(line, file=console, flush=True)

    stop = StopRequest()
    name = worker or _usual_name()
    call_interruptibly(lambda: _serve(stop, port, host, name, limit, gpus, metrics_port, tell), stop, tell)
    if stop.signal_number is not None:
        tell("Stopped; schedules are kept, and continue with the next `erl-pipeline serve`.")
        # All is closed. A normal exit would take seconds more, for what Prefect made in the interpreter.
        os._exit(stop.exit_status)


def _serve(
    stop: StopRequest,
    port: int,
    host: str,
    name: str,
    limit: int,
    gpus: int | None,
    metrics_port: int | None,
    tell: Callable[[str], None],
) -> None:
    from prefect.settings import get_current_settings

    from flows.deployments import WORK_POOL, connected
    from flows.local_server import for_others, serving_api
    from flows.metrics import WorkerMetrics, serve_metrics
    from flows.worker import only_worker, restart_orphans, set_device_limit, work

    settings = get_current_settings()
    log_file = settings.home / "erl-pipeline-serve.log"
    metrics = WorkerMetrics()

    def handle(message: Message) -> None:
        metrics.handle(message)
        line = _line(message)
        if line is not None:
            tell(f"{datetime.now():%H:%M:%S}  {line}")

    with ExitStack() as stack:
        stack.enter_context(only_worker(settings.home, name))
        url, started, gone = stack.enter_context(serving_api(host, port, log_file))
        with connected(url) as client:
            slots = set_device_limit(client, DEVICE_LIMIT, gpus)
            restarted = restart_orphans(client, WORK_POOL, name)
        api = f"{for_others(host, urlsplit(url).port or port)}/api" if started else url
        tell(f"Prefect page: {api.removesuffix('/api')}")
        if started:
            tell(f"To use it:    export PREFECT_API_URL={api}    # before `schedule` and `train` elsewhere")
        tell(
            f"Worker:       {counted(limit, 'flow run')} at once; {slots} can hold a slot of {DEVICE_LIMIT!r}"
        )
        if metrics_port is not None:
            bound = stack.enter_context(serve_metrics(metrics.registry, host, metrics_port))
            tell(f"Metrics:      {for_others(host, bound)}/metrics")
        tell(f"Log:          {log_file}")
        if restarted:
            runs = counted(len(restarted), "flow run")
            tell(f"Continuing {runs} whose worker was killed: {', '.join(restarted)}")
        work(url, name, limit, handle, stop.event, gone, log_file)


def _usual_name() -> str:
    """Of a worker: two users of a machine may work for one server, each with flow runs of their own."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _line(message: Message) -> str | None:
    """A message of a flow run as a line for the user; None for a reused stage."""
    from flows.worker_link import FlowEnded, FlowStarted

    if isinstance(message, FlowStarted):
        return f"{message.run}: {message.flow} begins"
    if isinstance(message, FlowEnded):
        return f"{message.run}: {message.flow} {message.outcome}"
    outcome = message.outcome
    if outcome.reused:
        return None
    place = f"iteration {outcome.iteration}" if outcome.iteration else "before the first iteration"
    return f"{message.run}: {place}, {outcome.stage} in {outcome.seconds:.1f} s"
