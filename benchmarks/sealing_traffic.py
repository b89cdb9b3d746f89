"""How long it takes to seal the traffic of a served policy, and how much memory.

    python benchmarks/sealing_traffic.py --calls 1000000 --runs 1 --write

The calls are made up, without a model: two of an episode, every tenth episode rated. Large logs are read in
as many processes as there are processors; the other contender reads in one.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import measurements
import psutil
from measurements import Column, Figures, ResidentMemory
from workloads.served_calls import served_turn

from erl_pipeline.config.run import RunConfig
from erl_pipeline.serving.learning.collect import collect
from erl_pipeline.serving.settings import EpisodeSettings
from storage.runs.run import RunStore
from storage.serving.traffic import Feedback, Record, TrafficLog

RUN = "served"
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
PROMPT_TOKENS, ANSWER_TOKENS, TURNS = 60, 40, 2
RATED = 0.1
COLUMNS = (
    Column("seconds_per_million", "s a million calls"),
    Column("processor_seconds_per_million", "CPU s a million calls"),
    Column("peak_bytes", "peak MB of all processes together", 0, 1e-6),
    Column("log_bytes", "MB of the log", 0, 1e-6),
)


def calls(count: int) -> Iterator[Record]:
    """Episodes of two turns, every tenth of them rated."""
    draw = random.Random(0)
    for number in range(count):
        episode, place = divmod(number, TURNS)
        arrived = BEGUN + timedelta(seconds=number / 100)
        episode_of = {"episode_id": f"episode-{episode}", "tenant": "acme", "user": f"user-{episode % 1000}"}
        yield served_turn(
            number,
            draw,
            PROMPT_TOKENS,
            ANSWER_TOKENS,
            **episode_of,
            task_type=f"type-{episode % 8}",
            after=f"turn-{number - 1}" if place else None,
            messages=({"role": "user", "content": "what is it? " * 15},),
            answer={"role": "assistant", "content": "it is this. " * 12},
            arrived=arrived,
        )
        if place and draw.random() < RATED:
            yield Feedback(
                **episode_of,
                feedback_id=f"feedback-{number}",
                call_id=f"call-{number}",
                metric="thumbs",
                value="up",
                reward=1.0,
                source="user",
                received=arrived,
            )


def written_log(store: str, count: int) -> Path:
    log, records = TrafficLog(store, RUN), calls(count)
    for number, record in enumerate(records):
        log.append([record])
        if number % 10_000 == 0:
            log.sync()
    log.close()
    return log.path


_LOOK_SECONDS = 0.5


class MemoryOfAll(ResidentMemory):
    """Watches this process and those that it has started, together."""

    def now(self) -> int:
        own = psutil.Process()
        found = []
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                memory = process.memory_info()
                found.append(memory.rss - memory.shared)
        return sum(found)


def processor_seconds() -> float:
    """Of this process and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def sealed(calls: int, processes: int | None) -> Figures:
    """The figures of one sealing. `processes`: the most that read the log; None: the program's own choice."""
    with tempfile.TemporaryDirectory() as store:
        environment = {"type": "frozen_lake"}
        config = RunConfig.model_validate(
            {"name": RUN, "iterations": 1, "environment": environment, "policy": {"type": "tiny"}}
        )
        RunStore(store).create(RUN, config.model_dump(mode="json"))
        log = written_log(store, calls)
        now = BEGUN + timedelta(days=30)
        begun, used = time.perf_counter(), processor_seconds()
        with MemoryOfAll(every=_LOOK_SECONDS) as memory:
            found = collect(store, RUN, EpisodeSettings(), now, processes=processes)
        seconds, processor = time.perf_counter() - begun, processor_seconds() - used
        assert found.settled == calls // TURNS
        return {
            "seconds_per_million": seconds / calls * 1e6,
            "processor_seconds_per_million": processor / calls * 1e6,
            "peak_bytes": float(memory.peak),
            "log_bytes": float(log.stat().st_size),
        }


def main() -> None:
    parser = measurements.argument_parser(__doc__ or "")
    parser.add_argument("--calls", type=int, default=100_000)
    arguments = measurements.parse_arguments(parser)
    if arguments.contender:
        processes = 1 if arguments.contender == "one process" else None
        arguments.figures.write_text(json.dumps(sealed(arguments.calls, processes)))
        return
    measurements.compare_contenders(
        "sealing_traffic",
        ("several processes", "one process"),
        COLUMNS,
        arguments,
        ["--calls", str(arguments.calls)],
        ["pyarrow", "pydantic"],
        f"{arguments.calls:,} calls, ",
    )


if __name__ == "__main__":
    main()
