"""Traffic of a served run, as a server would have logged it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from erl_pipeline.stages.names import TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.serving.traffic import EpisodeEnd, Feedback, Record, ServedTurn, TrafficLog
from storage.tables.trajectories import Trajectory, read_trajectories
from tests.erl_pipeline.runs.small_runs import small

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOMORROW = NOON + timedelta(days=2)
RUN = "small"


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def turn(name: str, episode: str = "e", **changes: Any) -> ServedTurn:
    """A turn that sampled two tokens."""
    given: dict[str, Any] = {
        "turn_id": name,
        "call_id": f"call-{name}",
        "episode_id": episode,
        "tenant": "acme",
        "user": "u1",
        "task_type": "chat",
        "alias": "production",
        "policy_version": "policy",
        "tokenizer_digest": "words",
        "temperature": 1.0,
        "after": None,
        "context_token_ids": (1, 3),
        "sampled_token_ids": (5, 2),
        "logprobs": (-0.5, -0.25),
        "seed": 7,
        "finish_reason": "stop",
        "not_trainable": "",
        "messages": ({"role": "user", "content": f"asks {name}"},),
        "answer": {"role": "assistant", "content": f"says {name}"},
        "notes": "",
        "memory_version": "",
        "memory_entry_ids": (),
        "arrived": NOON,
        "seconds": 0.1,
    }
    return ServedTurn(**{**given, **changes})


def rating(name: str, reward: float | None, episode: str = "e", **changes: Any) -> Feedback:
    given: dict[str, Any] = {
        "feedback_id": name,
        "episode_id": episode,
        "call_id": None,
        "tenant": "acme",
        "user": "u1",
        "metric": "thumbs",
        "value": "up",
        "reward": reward,
        "source": "user",
        "received": at(1),
    }
    return Feedback(**{**given, **changes})


def end(episode: str = "e", seconds: float = 2) -> EpisodeEnd:
    return EpisodeEnd(episode_id=episode, tenant="acme", received=at(seconds))


def log(store: Path, *records: Record) -> Path:
    """A segment of its own with these records."""
    written = TrafficLog(str(store), RUN)
    written.append(records)
    written.close()
    return written.path


def begin_run(store: Path, **changes: Any) -> None:
    """The served run, which is not trained."""
    RunStore(str(store)).create(RUN, small(name=RUN, **changes).model_dump(mode="json"))


def sampled_rows(store: Path) -> list[Trajectory]:
    artifacts = ArtifactStore(str(store))
    shards = [
        entry.artifact_id for entry in RunStore(str(store)).open(RUN).stages() if entry.kind == "trajectories"
    ]
    return read_trajectories([artifacts.open(shard).path(TRAJECTORIES) for shard in shards])


def conversations(store: Path, count: int, policy: str, first: int = 0) -> list[Record]:
    """Rated episodes: what the run sampled in training, now said by a checkpoint of it; every
    gets a thumb up."""
    rows = sampled_rows(store)
    records: list[Record] = []
    for number in range(first, first + count):
        row = rows[number % len(rows)]
        messages = json.loads(row.messages)
        records.append(
            turn(
                f"t{number}",
                f"e{number}",
                policy_version=policy,
                tokenizer_digest=row.tokenizer_digest,
                temperature=row.temperature,
                context_token_ids=row.prompt_token_ids,
                sampled_token_ids=row.response_token_ids[:1],
                logprobs=row.behaviour_logprobs[:1],
                messages=({"role": "user", "content": f"question {number}"},),
                answer=messages[-1],
                arrived=at(number),
            )
        )
        records.append(rating(f"f{number}", float(number % 2), f"e{number}", received=at(number)))
    return records
