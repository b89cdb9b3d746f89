"""The ranks of one machine, started by torch's elastic launcher.

The launcher has a process of its own, `python -m erl_pipeline.trainers.fsdp2.launcher LAUNCH FOLDER
[SOCKET]`, since it handles signals in its main thread and gives the ranks its environment. Its standard input
is a pipe that its owner holds and the ranks inherit: when the owner ends, however it does, the pipe ends, and
so do they.

Node 0's launcher serves torch's store at the socket of number SOCKET. The nodes find each other there through
torch's static rendezvous: its dynamic one unpickles what anybody has put into the store.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from erl_pipeline.garbage import search_seldom
from erl_pipeline.network import Address

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not declared so

LAUNCHER_MODULE = "erl_pipeline.trainers.fsdp2.launcher"
RANK_MODULE = "erl_pipeline.trainers.fsdp2.rank"
_FAILURE = "failure.json"
_LOG_BYTES, _LOG_LINES = 32768, 30
_END_SECONDS = 10
_JOIN_SECONDS = 3600
"""Whoever waits for the other nodes ends the launcher earlier where they do not come."""
TIMEOUT_SECONDS = 1800.0
"""How long a rank waits for the others in one exchange, unless the settings say otherwise."""
TIMEOUT_VARIABLE = "ERL_PIPELINE_TIMEOUT_SECONDS"
DETERMINISTIC_VARIABLE = "ERL_PIPELINE_DETERMINISTIC"
"""By these environment variables a rank is told what it needs before it joins the others."""


@dataclass(frozen=True)
class Launch:
    """Which ranks a machine starts: those of node `node` of `nodes`, `processes` on each.

    `orders`: the folder with what the ranks are told, which all nodes see. `address` is where the store is,
    `interface` the machine's network interface through which the ranks find each other. A rank waits
    `timeout_seconds` for the others in one exchange. `deterministic`: whether GPUs are to give equal bytes.
    """

    address: Address
    node: int
    nodes: int
    processes: int
    threads: int
    orders: Path
    interface: str
    timeout_seconds: float = TIMEOUT_SECONDS
    deterministic: bool = False

    @property
    def ranks(self) -> range:
        return range(self.node * self.processes, (self.node + 1) * self.processes)


@dataclass(frozen=True)
class RankFailure:
    """The rank of a machine that ended first, with the status that `Popen.poll` gives."""

    rank: int
    status: int


class LaunchedRanks:
    """The launcher and its ranks, which end with this object and with this process.

    Args:
        folder: of this machine, for logs.
        listening: the socket of the store, on node 0.
    """

    def __init__(self, launch: Launch, folder: Path, listening: socket.socket | None = None) -> None:
        self.launch = launch
        self._folder = folder
        self._log = folder / "launcher.log"
        given = [] if listening is None else [listening.fileno()]
        words = TypeAdapter(Launch).dump_json(launch).decode()
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", LAUNCHER_MODULE, words, str(folder), *map(str, given)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=given,
                env=_environment(launch),
                # Not in this process's group: Ctrl-C is for this process, which ends them.
                process_group=0,
            )

    def ended(self) -> bool:
        """Whether the launcher has ended, since a rank has."""
        return self._process.poll() is not None

    def failure(self) -> RankFailure | None:
        """The rank that ended first, once the launcher has ended; None where none was started."""
        path = self._folder / _FAILURE
        return RankFailure(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def log_of(self, rank: int) -> Path:
        local = rank - self.launch.ranks.start
        return next(self._folder.glob(f"ranks_*/attempt_0/{local}/stderr.log"), self._log)

    def end(self) -> None:
        """End all ranks, whatever they do; they have nothing to finish."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def last_lines(log: Path) -> str:
    if not log.exists():
        return "(no log)"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-_LOG_LINES:])


def end_with_owner(end: Callable[[], None]) -> None:
    """Call `end` when the pipe of the standard input ends."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()


def _environment(launch: Launch) -> dict[str, str]:
    gloo = {"GLOO_SOCKET_IFNAME": launch.interface}
    if launch.nodes > 1:
        # What the user says about interfaces goes before.
        through = {**gloo, "NCCL_SOCKET_IFNAME": f"={launch.interface}", **os.environ}
    else:
        through = {**os.environ, **gloo}
    return {
        **through,
        # The ranks find the same modules as this process.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": str(launch.threads),
        TIMEOUT_VARIABLE: str(launch.timeout_seconds),
        DETERMINISTIC_VARIABLE: str(int(launch.deterministic)),
    }


def main(launch: Launch, folder: Path, listening: int | None) -> int:
    """Start the ranks and wait for their end; returns the status of this process."""
    # Before the launcher has started ranks, this ends the process; then it ends them first.
    end_with_owner(lambda: os.kill(os.getpid(), signal.SIGTERM))
    search_seldom()
    # torch takes seconds to import.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    host, port = launch.address.host, launch.address.port
    served = None
    if listening is not None:
        # The rendezvous in this process shares this server, since both are of several tenants.
        served = TCPStore(
            host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening
        )
    config = LaunchConfig(
        min_nodes=launch.nodes,
        max_nodes=launch.nodes,
        nproc_per_node=launch.processes,
        run_id="ranks",
        role="trainer",
        rdzv_backend="static",
        rdzv_endpoint=str(launch.address),
        rdzv_configs={"rank": launch.node, "timeout": _JOIN_SECONDS},
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(str(folder), Std.ALL),
        shutdown_timeout=_END_SECONDS // 2,
    )
    try:
        elastic_launch(config, sys.executable)("-m", RANK_MODULE, str(launch.orders))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        failed = RankFailure(rank, failure.exitcode)
        (folder / _FAILURE).write_text(json.dumps(asdict(failed)), encoding="utf-8")
    except SignalException:
        pass  # the owner has ended it
    del served
    return 1


def connect(address: Address, seconds: float) -> TCPStore:
    """Connect to the store at an address. Raises OSError where none is there.

    torch waits without a limit for a server that accepts connections and says nothing, so this is done in a
    thread.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    socket.create_connection((address.host, address.port), timeout=seconds).close()
    found: list[TCPStore | Exception] = []

    def try_it() -> None:
        limit = timedelta(seconds=seconds)
        try:
            found.append(TCPStore(address.host, address.port, wait_for_workers=False, timeout=limit))
        except (RuntimeError, ValueError) as error:
            found.append(error)

    thread = threading.Thread(target=try_it, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found or isinstance(found[0], Exception):
        raise OSError("what listens there does not answer as torch's store does")
    return found[0]


if __name__ == "__main__":
    status = main(
        TypeAdapter(Launch).validate_json(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]) if len(sys.argv) > 3 else None,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    # The owner waits for this process, and Python takes a second to take apart what torch has imported.
    os._exit(status)
