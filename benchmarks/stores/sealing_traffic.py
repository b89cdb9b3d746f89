"""How long it takes to seal the traffic of a served policy, and how much memory: calls that were made up, no
model. The aim is a million calls in 60 s and 1 GB.

    python benchmarks/stores/sealing_traffic.py --calls 1000000
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from erl_pipeline.config.run import RunConfig
from erl_pipeline.serving.learning.collect import collect
from erl_pipeline.serving.settings import EpisodeSettings
from storage.runs.run import RunStore
from storage.serving.traffic import Feedback, Record, ServedTurn, TrafficLog

RUN = "served"
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)
PROMPT_TOKENS, ANSWER_TOKENS, TURNS = 60, 40, 2
RATED = 0.1


def calls(count: int) -> Iterator[Record]:
    """Episodes of two turns, every tenth of them rated."""
    draw = random.Random(0)
    for number in range(count):
        episode, place = divmod(number, TURNS)
        arrived = BEGUN + timedelta(seconds=number / 100)
        yield ServedTurn(
            turn_id=f"turn-{number}",
            call_id=f"call-{number}",
            episode_id=f"episode-{episode}",
            tenant="acme",
            user=f"user-{episode % 1000}",
            task_type=f"type-{episode % 8}",
            alias="production",
            policy_version="0" * 32,
            tokenizer_digest="0" * 32,
            temperature=1.0,
            after=f"turn-{number - 1}" if place else None,
            context_token_ids=tuple(draw.choices(range(50_000), k=PROMPT_TOKENS)),
            sampled_token_ids=tuple(draw.choices(range(50_000), k=ANSWER_TOKENS)),
            logprobs=tuple(-draw.random() for _ in range(ANSWER_TOKENS)),
            seed=number,
            finish_reason="stop",
            not_trainable="",
            messages=({"role": "user", "content": "what is it? " * 15},),
            answer={"role": "assistant", "content": "it is this. " * 12},
            notes="",
            memory_version="",
            memory_entry_ids=(),
            arrived=arrived,
            seconds=0.5,
        )
        if place and draw.random() < RATED:
            yield Feedback(
                feedback_id=f"feedback-{number}",
                episode_id=f"episode-{episode}",
                call_id=f"call-{number}",
                tenant="acme",
                user=f"user-{episode % 1000}",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=100_000)
    count = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as store:
        environment = {"type": "frozen_lake"}
        config = RunConfig.model_validate(
            {"name": RUN, "iterations": 1, "environment": environment, "policy": {"type": "tiny"}}
        )
        RunStore(store).create(RUN, config.model_dump(mode="json"))
        log = written_log(store, count)
        now = BEGUN + timedelta(days=30)
        begun, used = time.perf_counter(), time.process_time()
        found = collect(store, RUN, EpisodeSettings(), now)
        seconds, processor = time.perf_counter() - begun, time.process_time() - used
        assert found.batch is not None
        print(
            json.dumps(
                {
                    "calls": count,
                    "log_mb": round(log.stat().st_size / 1e6),
                    "episodes": found.settled,
                    "rated": found.rated,
                    "seconds": round(seconds, 1),
                    "processor_seconds": round(processor, 1),
                    "seconds_per_million_calls": round(seconds / count * 1e6, 1),
                    "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
                }
            )
        )


if __name__ == "__main__":
    main()
