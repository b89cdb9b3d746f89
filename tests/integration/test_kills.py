"""Runs killed with SIGKILL at random instants, many of them in the middle of a commit.

ERL_TEST_KILLS says how many kills, ERL_TEST_SEED which. `make reliability` kills a hundred times.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.views.trackers.events import scalars
from tests.integration.killing import SMALL, random_moment, train_to_the_end, train_until, where_it_died
from tests.integration.runs import artifact_hashes, trajectory_ids

KILLS = int(os.environ.get("ERL_TEST_KILLS", "12"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_killed_at_random_instants_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    undisturbed = tmp_path / "undisturbed"
    train_to_the_end(config, tmp_path / "first")  # the first start imports everything
    whole = train_to_the_end(config, undisturbed)
    hashes, ids = artifact_hashes(undisturbed), sorted(trajectory_ids(undisturbed))
    numbers = scalars(undisturbed / "runs" / "small" / "tensorboard")
    assert len(set(ids)) == len(ids) > 0

    chance = random.Random(SEED)
    died: Counter[str] = Counter()
    stores = 0
    while died.total() < KILLS:
        store = tmp_path / f"disturbed-{stores}"
        while died.total() < KILLS and train_until(config, store, random_moment(store, whole, chance)):
            died[where_it_died(store)] += 1
        train_to_the_end(config, store)
        stores += 1

        assert artifact_hashes(store) == hashes
        assert sorted(trajectory_ids(store)) == ids
        run = RunStore(str(store)).open("small")
        report = verify_run(ArtifactStore(str(store)), run)
        assert report.problems == []
        assert report.memory_entries > 0
        assert list((store / "staging").iterdir()) == []
        recorded = scalars(store / "runs" / "small" / "tensorboard")
        assert recorded.keys() == numbers.keys()
        assert {len(values) for values in recorded.values()} == {1}
        shutil.rmtree(store)
    print(f"\nseed {SEED}: killed {died.total()} times in {stores} runs of {whole:.1f} s")
    for place, times in sorted(died.items()):
        print(f"  {times:3d} {place}")
    in_commit = sum(times for place, times in died.items() if not place.startswith("at work"))
    assert in_commit > 0
