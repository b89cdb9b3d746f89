"""Small real runs whose failed attempts are judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.evaluation.samples import count_samples
from erl_pipeline.plan.plan import StageKey
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.episodes.judge_server import JudgeServer, serve
from tests.erl_pipeline.runs.adapted_runs import config, save_base
from tests.erl_pipeline.runs.small_runs import go, ids

# The base knows only the words of the game.
TEMPLATE = {"system": "", "template": "{{ observation }} trace {{ trace }} {{ feedback }} reflect"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base"))


def judged(base: Path, store: Path, feedback: Mapping[str, Any]) -> tuple[ArtifactStore, dict[StageKey, str]]:
    """The store and the artifacts of a run of one iteration."""
    method = {"type": "erl", "memory": False, "ill_formed": "base_prompt", "feedback": feedback}
    go(config(base, method=method, iterations=1), store)
    run = RunStore(str(store)).open("adapted")
    artifacts = ArtifactStore(str(store))
    assert verify_run(artifacts, run).problems == []
    return artifacts, ids(store, "adapted")


def rows_of(artifacts: ArtifactStore, places: Mapping[StageKey, str]) -> pl.DataFrame:
    shards = [made for place, made in places.items() if place.stage == "rollout_shard"]
    return pl.concat(
        [pl.read_parquet(artifacts.open(shard).path("trajectories.parquet")) for shard in shards]
    )


def test_the_policy_judges_itself_and_is_not_trained_on_that(base: Path, tmp_path: Path) -> None:
    feedback = {"type": "judge", "max_new_tokens": 3, **TEMPLATE}
    artifacts, places = judged(base, tmp_path / "store", feedback)
    rows = rows_of(artifacts, places)
    said = rows.filter(role="judge")
    assert said.height == rows.filter(role="reflection").height > 0
    assert set(said["policy_version"]) == {places[StageKey(0, "bootstrap", "")]}
    assert all(0 < tokens <= 3 for tokens in said["response_token_ids"].list.len())
    update = artifacts.open(places[StageKey(1, "update_policy", "")]).manifest
    assert update.counters["dropped_never_trained"] == said.height
    samples = count_samples(artifacts, RunStore(str(tmp_path / "store")).open("adapted"))
    assert samples.problems == []
    of_judge = next(each for each in samples.counts if each.role == "judge")
    assert (of_judge.trained, of_judge.dropped) == (0, {"never_trained": said.height})
    shard = artifacts.open(places[StageKey(1, "rollout_shard", "0000")]).manifest
    assert shard.determinism == "bytes"


def test_rollouts_with_a_judge_on_a_server_say_that_they_cannot_be_repeated(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with serve(JudgeServer(answer="lost")) as server:
        feedback = {"type": "judge", "url": server.url, "model": "critic", "api_key_variable": "JUDGE_KEY"}
        artifacts, places = judged(base, tmp_path / "store", {**feedback, **TEMPLATE})
    said = rows_of(artifacts, places).filter(role="judge")
    assert said.height == len(server.questions) > 0
    assert set(said["text"]) == {"lost"}
    assert set(server.keys) == {"Bearer secret"}
    shards = [artifacts.open(made) for place, made in places.items() if place.stage == "rollout_shard"]
    assert {shard.manifest.determinism for shard in shards} == {"approximate"}
    stored = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not [path for path in stored if b"secret" in path.read_bytes()]
