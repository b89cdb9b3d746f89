"""A small trained run, whose own rollouts are what it said when it served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from erl_pipeline.stages.names import TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.serving.traffic import Record
from storage.tables.trajectories import Trajectory, read_trajectories
from tests.erl_pipeline.runs.small_runs import go, small
from tests.erl_pipeline.serving.served_traffic import RUN, at, rating, turn


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a small run with one iteration."""
    store = tmp_path_factory.mktemp("served")
    go(small(name=RUN, iterations=1, method={"type": "rlvr"}), store)
    return store


@pytest.fixture
def served(trained: Path, tmp_path: Path) -> Path:
    """A copy of that store."""
    return Path(shutil.copytree(trained, tmp_path / "store"))


def sampled_rows(store: Path) -> list[Trajectory]:
    artifacts = ArtifactStore(str(store))
    shards = [
        entry.artifact_id for entry in RunStore(str(store)).open(RUN).stages() if entry.kind == "trajectories"
    ]
    return read_trajectories([artifacts.open(shard).path(TRAJECTORIES) for shard in shards])


def conversations(store: Path, count: int, policy: str, first: int = 0) -> list[Record]:
    """Rated episodes: what the run sampled in training, now said by a checkpoint of it; every
    other one gets a thumb up."""
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
