"""Traffic of a served run, as a server would have logged it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from storage.runs.run import RunStore
from storage.serving.traffic import EpisodeEnd, Feedback, Record, ServedTurn, TrafficLog
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
