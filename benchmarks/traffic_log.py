"""The log of a policy that serves: whether it keeps up with calls, and what it costs them.

    python benchmarks/traffic_log.py --rate 500 --seconds 20 --write

The calls are generated, without a model: 600 tokens of context, 150 sampled tokens. They arrive at an even
rate in one event loop, as in a server, and are written with each durability. `--folder` should be on the
disk that a store would be on.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal, cast

import measurements
from measurements import Column, Figures
from workloads.served_calls import served_turn

from erl_pipeline.serving.settings import LogSettings
from erl_pipeline.serving.writing import LogWriter
from storage.serving.traffic import ReadTraffic, ServedTurn, TrafficLog, read_traffic

CONTEXT, SAMPLED = 600, 150
COLUMNS = (
    Column("calls_per_second", "calls/s", 0),
    Column("call_seconds", "a call waits for the log, ms", 2, 1e3),
    Column("call_seconds_p99", "at most, of 99 %", 2, 1e3),
    Column("disk_seconds", "a record waits for the disk, ms", 1, 1e3),
    Column("disk_seconds_p99", "at most, of 99 %", 1, 1e3),
    Column("processor", "share of a core", 2),
    Column("missing", "records missing", 0),
)
_LOOK_SECONDS = 0.01

Durability = Literal["batch", "each"]


async def logged(folder: Path, durability: Durability, rate: int, seconds: float) -> Figures:
    """Log calls at a rate for so many seconds."""
    log = TrafficLog(str(folder), "benchmark")
    writer = LogWriter(log, LogSettings(durability=durability), print)
    flushing = asyncio.create_task(writer.flush_forever())
    draw, count = random.Random(0), round(rate * seconds)
    # Made before, so that only the log is measured.
    turns = [served_turn(number, draw, CONTEXT, SAMPLED) for number in range(min(1000, count))]
    waited: list[float] = []
    lags: list[float] = []

    async def write(turn: ServedTurn) -> None:
        began = time.perf_counter()
        await writer.write([turn])
        waited.append(time.perf_counter() - began)

    async def look() -> None:
        while True:
            lags.append(writer.lag_seconds)
            await asyncio.sleep(_LOOK_SECONDS)

    looking = asyncio.create_task(look())
    began, used = time.perf_counter(), time.process_time()
    calls: list[asyncio.Task[None]] = []
    for number in range(count):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calls.append(asyncio.create_task(write(turns[number % len(turns)])))
    await asyncio.gather(*calls)
    took, used = time.perf_counter() - began, time.process_time() - used
    for task in (flushing, looking):
        task.cancel()
    log.close()
    records = sum(1 for _ in read_traffic([log.path], ReadTraffic()))
    return {
        "calls_per_second": count / took,
        **_with_quantile("call_seconds", waited),
        **_with_quantile("disk_seconds", lags),
        "processor": used / took,
        "missing": float(count - records),
    }


def _with_quantile(name: str, seconds: list[float]) -> Figures:
    quantiles = statistics.quantiles(seconds, n=100)
    return {name: quantiles[49], f"{name}_p99": quantiles[98]}


def main() -> None:
    parser = measurements.argument_parser(__doc__ or "")
    parser.add_argument("--folder", type=Path, help="where the log is written; default: a temporary folder")
    parser.add_argument("--rate", type=int, default=500, help="calls a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    arguments = measurements.parse_arguments(parser)
    if arguments.contender:
        durability = cast(Durability, arguments.contender)
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            figures = asyncio.run(logged(Path(folder), durability, arguments.rate, arguments.seconds))
        arguments.figures.write_text(json.dumps(figures))
        return
    options = ["--rate", str(arguments.rate), "--seconds", str(arguments.seconds)]
    if arguments.folder is not None:
        options += ["--folder", str(arguments.folder)]
    measurements.compare_contenders(
        "traffic_log",
        ("batch", "each"),
        COLUMNS,
        arguments,
        options,
        ["pydantic"],
        f"{round(arguments.rate * arguments.seconds):,} calls, {arguments.rate} calls a second, ",
    )


if __name__ == "__main__":
    main()
