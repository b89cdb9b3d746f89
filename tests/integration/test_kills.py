"""Runs killed with SIGKILL at random instants, many of them in the middle of a commit.

ERL_TEST_KILLS sets the number of kills, ERL_TEST_SEED their seed. `make reliability` kills a hundred times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from contextlib import suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.command_line.invoke import FinishedRun
from tests.erl_pipeline.views.events import scalars
from tests.integration.killing import (
    Watch,
    after_publication,
    before_publication,
    during_late_writing,
    random_moment,
    seconds_of,
    start_driver,
    train_to_the_end,
    train_until,
    where_it_died,
    workers_of,
)
from tests.integration.runs import artifact_hashes, trajectory_ids
from tests.waiting import wait_for

KILLS = int(os.environ.get("ERL_TEST_KILLS", "6"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))


def weights_hashes(store: Path) -> dict[tuple[str, str], dict[str, str]]:
    """As `artifact_hashes`, without the states of the optimizer."""
    return {
        place: {name: digest for name, digest in files.items() if name != "optimizer.safetensors"}
        for place, files in artifact_hashes(store).items()
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("optimizer_every", [1, 4])
def test_a_run_killed_at_random_instants_ends_with_the_bytes_of_an_undisturbed_one(
    finished: FinishedRun, tmp_path: Path, optimizer_every: int
) -> None:
    """The undisturbed run was trained in this process, and every checkpoint has the state of the optimizer.
    The killed one writes and commits beside the stages; the first two kills are in the middle of a commit,
    the third is while a state is written."""
    undisturbed, whole = finished.store, seconds_of(finished.store)
    config = tmp_path / "killed.yaml"
    config.write_text(
        f"{finished.config.read_text()}\nretention: {{optimizer_every: {optimizer_every}}}\n"
        "store: {background_commit_mb: 0}\n"
    )
    hashes_of = artifact_hashes if optimizer_every == 1 else weights_hashes
    hashes, ids = hashes_of(undisturbed), sorted(trajectory_ids(undisturbed))
    numbers = scalars(undisturbed / "runs" / "small" / "tensorboard")
    assert len(set(ids)) == len(ids) > 0

    chance = random.Random(SEED)
    died: Counter[str] = Counter()
    stores = 0
    while died.total() < KILLS:
        store = tmp_path / f"disturbed-{stores}"
        moments = iter(
            [before_publication(store, 2), after_publication(store, 3), during_late_writing(store, 1)]
        )
        while died.total() < KILLS and train_until(
            config, store, next(moments, None) or random_moment(store, whole, chance, late=True)
        ):
            died[where_it_died(store, "small")] += 1
        train_to_the_end(config, store)
        stores += 1

        assert hashes_of(store) == hashes
        assert sorted(trajectory_ids(store)) == ids
        assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []
        assert list((store / "staging").iterdir()) == []
        recorded = scalars(store / "runs" / "small" / "tensorboard")
        assert recorded.keys() == numbers.keys()
        assert {len(values) for values in recorded.values()} == {1}
        shutil.rmtree(store)
    print(f"\nseed {SEED}: killed {died.total()} times in {stores} runs of {whole:.1f} s")
    for place, times in sorted(died.items()):
        print(f"  {times:3d} {place}")


def ended_or_at(process: BaseProcess, moment: Watch) -> bool:
    """Whether a process has ended, or a moment has come."""
    return process.exitcode is not None or moment()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(KILLS < 100, reason="each kill of a worker costs a start of a process and of Prefect")
def test_a_run_whose_workers_are_killed_too_ends_with_the_bytes_of_an_undisturbed_one(
    finished: FinishedRun, tmp_path: Path
) -> None:
    """About every second kill hits a worker process, the others the driver. A
    driver that gives up after it lost a worker is started again."""
    settings = ["runner={type: prefect, task_runner: processes, workers: 2}", "resources.devices=2"]
    config = load_config(finished.config, [*settings, "store.background_commit_mb=0"])
    hashes, ids = artifact_hashes(finished.store), sorted(trajectory_ids(finished.store))
    whole, chance = seconds_of(finished.store), random.Random(SEED)
    struck: Counter[str] = Counter()
    while struck.total() < KILLS // 5:
        store = tmp_path / f"disturbed-{struck.total()}"
        complete, lost = False, 0
        while not complete:
            driver = start_driver(config, str(store))
            while driver.exitcode is None and struck.total() < KILLS // 5:
                moment = random_moment(store, whole, chance)
                wait_for(
                    "the moment, or the end",
                    partial(ended_or_at, driver, moment),
                    patience=600.0,
                    interval=0.001,
                )
                workers = sorted(workers_of(driver.pid))
                if workers and struck["worker"] <= struck["driver"]:
                    with suppress(ProcessLookupError):  # It may have ended just now.
                        os.kill(chance.choice(workers), signal.SIGKILL)
                    struck["worker"] += 1
                    lost += 1
                elif driver.exitcode is None:
                    driver.kill()
                    struck["driver"] += 1
                    break
            driver.join()
            complete = driver.exitcode == 0
            assert complete or driver.exitcode == -signal.SIGKILL or lost
        assert artifact_hashes(store) == hashes
        assert sorted(trajectory_ids(store)) == ids
        assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("small")).problems == []
        shutil.rmtree(store)
    assert set(struck) == {"driver", "worker"}
