"""Runs with retention that are killed after edits of code, settings and prompts. They end with the bytes of
runs that nothing disturbed.

ERL_TEST_KILLS sets the number of kills, ERL_TEST_SEED their seed.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import SMALL, hashes, ids, small
from tests.integration.killing import kill_at, random_moment, seconds_of, start_edited

KILLS = int(os.environ.get("ERL_TEST_KILLS", "6"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
EACH = max(1, KILLS // 12)
"""Kills after each edit."""
LEARNING: dict[str, Any] = {
    "environment": {**SMALL["environment"], "max_steps": 4},
    "policy": {
        "type": "tiny",
        "layers": 1,
        "cold_start": {"steps": 60, "demonstrations_per_step": 8, "gate": 0},
    },
    "rollouts": {"tasks_per_iteration": 3, "group_size": 8, "tasks_per_shard": 2},
}
"""What makes some attempts succeed, so that updates have something to train on."""


METHODS: dict[str, dict[str, Any]] = {
    "erl": {},
    "rlvr": {},
    "complementary": {"experience": {"warmup_iterations": 1}},
}


def configured(method: dict[str, Any], learns: bool, **changes: Any) -> RunConfig:
    kept = {"checkpoints": 1, "optimizer": 1, "trajectories": 1}
    return small(retention=kept, method=method, **(LEARNING if learns else {}), **changes)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("learns", [False, True], ids=["nothing to train", "learning"])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_with_retention_that_is_killed_after_edits_ends_with_the_same_bytes(
    tmp_path: Path, method: str, learns: bool
) -> None:
    chance = random.Random(f"{SEED} {method} {learns}")
    store = tmp_path / "store"
    chosen = {"type": method, **METHODS[method]}
    first = configured(chosen, learns, iterations=3)
    process = start_edited(first, store, "")
    process.join()
    assert process.exitcode == 0
    before_edits = hashes(store)
    artifacts, whole = ArtifactStore(str(store)), seconds_of(store)
    steps = [
        artifacts.open(artifact_id).manifest.counters["optimizer_steps"]
        for place, artifact_id in ids(store).items()
        if place.stage == "update_policy"
    ]
    assert any(steps) == learns

    # The other methods have no prompts that a small run uses; the seed takes their place.
    changed = {"prompts": {"reflection": "{{ trace }} {{ feedback }}"}} if method == "erl" else {}
    settings = configured(chosen, learns, name="b", iterations=3, optimizer={"learning_rate": 1e-3})
    prompts = configured({**chosen, **changed}, learns, name="c", seed=int(not changed))
    edits = [
        ("code", first, "1"),
        ("settings", settings, "1"),
        ("prompts", prompts, ""),
        ("code again", first, ""),
    ]
    if KILLS <= 6:
        edits = edits[::2] if learns else [*edits[:2], edits[3]]
    killed = 0
    for what, config, edit in edits:
        for _ in range(EACH):
            killed += kill_at(random_moment(store, whole, chance), start_edited(config, store, edit))
        process = start_edited(config, store, edit)
        process.join()
        assert process.exitcode == 0, what
        if (config, edit) == (first, ""):
            undisturbed = before_edits
        else:
            alone = tmp_path / f"undisturbed after {what}"
            process = start_edited(config.model_copy(update={"retention": small().retention}), alone, edit)
            process.join()
            undisturbed = hashes(alone, config.name)
        assert hashes(store, config.name) == undisturbed, what
        run = RunStore(str(store)).open(config.name)
        assert verify_run(ArtifactStore(str(store)), run).problems == [], what
    print(f"\nseed {SEED}, {method}: killed {killed} times")
