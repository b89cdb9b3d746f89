"""Each command that writes is killed before its changes of files; the same command again ends whole.

ERL_TEST_POINTS sets the number of points of each command, `all` for all of them; ERL_TEST_SEED draws them.
LanceDB writes by itself, which Python does not announce: its tables are made again from artifacts where
they are not whole.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.memory.chain import read_chain, scan_entries
from storage.memory.versions import latest_version
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.killing import content, problems, run_killed

POINTS = os.environ.get("ERL_TEST_POINTS", "3")
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
RULES = "retention={checkpoints: 1, optimizer: 1, trajectories: 1}"
BRANCH = ["--iteration", "3", "--from", "fine_tune", "--set"]


@pytest.fixture(scope="module")
def stored(remembering: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A store with the runs `small` and `other`, and with artifacts that no run reaches."""
    folder = tmp_path_factory.mktemp("stored")
    store, rows = folder / "store", folder / "rows.parquet"
    shutil.copytree(remembering.store, store)
    for name, steps in (("gone", 5), ("other", 6)):
        change = f"fine_tune.steps={steps}"
        result = invoke("replay", "small", *BRANCH, change, "--name", name, "--store", store)
        assert result.status == 0, result.errors
    assert invoke("runs", "remove", "gone", "--store", store).status == 0
    shutil.copy(next((store / "artifacts/rollout_shard").glob("*/trajectories.parquet")), rows)
    return FinishedRun(remembering.config, store, remembering.training)


def words_of(name: str, stored: FinishedRun) -> list[str]:
    """A command, without its store."""
    config, rows = str(stored.config), str(stored.store.parent / "rows.parquet")
    retain = [f"--retain-{kind}=1" for kind in ("checkpoints", "optimizer", "trajectories")]
    commands: dict[str, list[str]] = {
        "gc": ["gc", "--min-age", "0", "--delete", *retain],
        "runs remove": ["runs", "remove", "other"],
        "memory forget": ["memory", "forget", "small", "ENTRY", "--reason", "it is wrong"],
        "import": ["import", "trajectories", rows, "--name", "imported"],
        # Without hostile answers the examination trains nothing, in a process that is not killed.
        "env qualify": ["env", "qualify", config, "--tasks", "2", "--answers", "0"],
        "report": ["report", "small"],
        "evaluate": ["evaluate", "small", "--tasks", "generated", "--count", "2", "--samples", "0"],
        "train": ["train", config, "--iterations", "4", "--no-prefect", "--set", RULES],
        "branch": ["replay", "small", *BRANCH, "fine_tune.steps=7", "--name", "branch"],
        "offline": [
            *("replay", "small", "--offline", "--iteration", "1..1", "--name", "offline", "--no-evaluation"),
            *("--set", "objective.correction={type: decoupled}"),
        ],
    }
    return commands[name]


def entry_of(store: Path) -> str:
    artifacts = ArtifactStore(str(store))
    _, deltas = read_chain(artifacts, latest_version(RunStore(str(store)).open("small")))
    return str(scan_entries(deltas).collect()["entry_id"].sort()[0])


NAMES = [
    "gc",
    "runs remove",
    "memory forget",
    "import",
    "env qualify",
    "report",
    "evaluate",
    "train",
    "branch",
    "offline",
]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_was_killed_ends_whole_when_it_is_called_again(
    stored: FinishedRun, tmp_path: Path, name: str
) -> None:
    words = [each.replace("ENTRY", entry_of(stored.store)) for each in words_of(name, stored)]
    whole = Path(shutil.copytree(stored.store, tmp_path / "whole"))
    count = run_killed([*words, "--store", str(whole)], tmp_path)
    expected = content(whole)
    assert count > 0
    assert problems(whole) == []
    every = range(1, count + 1)
    chosen = (
        every if POINTS == "all" else random.Random(f"{SEED} {name}").sample(every, min(count, int(POINTS)))
    )
    for at in chosen:
        store = Path(shutil.copytree(stored.store, tmp_path / "killed"))
        run_killed([*words, "--store", str(store)], tmp_path, at)
        again = invoke(*words, "--store", store)
        where = f"seed {SEED}: killed before change {at} of {count}: {again.output}{again.errors}"
        # What the killed process had finished may leave nothing to do.
        assert (
            again.status == 0
            or "not in the memory any more: forgotten" in again.errors
            or ("no run other in store" in again.errors)
        ), where
        assert problems(store) == [], where
        assert content(store) == expected, where
        shutil.rmtree(store)
    print(f"\n{name}: killed at {len(chosen)} of {count} points")
