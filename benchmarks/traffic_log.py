"""The log of a policy that serves: whether it keeps up with calls, and what it costs them.

    python benchmarks/traffic_log.py --folder FOLDER [--rate 500] [--seconds 20]

The calls are generated, without a model: 600 tokens of context, 150 sampled tokens. They arrive at an even
rate in one event loop, as in a server, and are written with each durability in turn. `write_ms` is what a
call waits for the log, `lag_ms` how long its record waits for the disk, both as median and 99th percentile;
`processor` is the share of one core that the process has used. FOLDER should be on the disk that a store
would be on. The output is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any, Literal

from workloads.served_calls import served_turn

from erl_pipeline.serving.settings import LogSettings
from erl_pipeline.serving.writing import LogWriter
from storage.serving.traffic import ReadTraffic, ServedTurn, TrafficLog, read_traffic

CONTEXT, SAMPLED = 600, 150
_LOOK_SECONDS = 0.01


async def logged(folder: Path, durability: Literal["batch", "each"], rate: int, seconds: float) -> Any:
    """Log calls at a rate for so many seconds."""
    log = TrafficLog(str(folder / durability), "benchmark")
    writer = LogWriter(log, LogSettings(durability=durability), print)
    flushing = asyncio.create_task(writer.flush_forever())
    draw = random.Random(0)
    # Made before, so that only the log is measured.
    turns = [
        served_turn(number, draw, CONTEXT, SAMPLED) for number in range(min(1000, round(rate * seconds)))
    ]
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
    for number in range(round(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calls.append(asyncio.create_task(write(turns[number % len(turns)])))
    await asyncio.gather(*calls)
    took, used = time.perf_counter() - began, time.process_time() - used
    for task in (flushing, looking):
        task.cancel()
    log.close()
    found = ReadTraffic()
    records = sum(1 for _ in read_traffic([log.path], found))
    return {
        "calls_a_second": records / took,
        "write_ms": _shown(waited),
        "lag_ms": _shown(lags),
        "processor": used / took,
        "megabytes": log.path.stat().st_size / 1e6,
        "records": records,
        "torn": found.torn,
    }


def _shown(seconds: list[float]) -> dict[str, float]:
    quantiles = statistics.quantiles(seconds, n=100)
    return {"median": 1000 * quantiles[49], "p99": 1000 * quantiles[98], "most": 1000 * max(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=int, default=500, help="calls a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    kinds: tuple[Literal["batch", "each"], ...] = ("batch", "each")
    figures = {kind: asyncio.run(logged(given.folder, kind, given.rate, given.seconds)) for kind in kinds}
    print(json.dumps({"machine": platform.machine(), "rate": given.rate, **figures}, indent=1))


if __name__ == "__main__":
    main()
