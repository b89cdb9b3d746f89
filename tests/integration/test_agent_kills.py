"""Runs of an agent in which the run's process, with the gateway in it, or the agents are killed with SIGKILL.

ERL_TEST_KILLS sets how many times each is, ERL_TEST_SEED the seed of the moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.stages.names import AGENT_CALLS, TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.agent_calls import scan_agent_calls
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.training import TRAINING_RECORD_FILE, scan_training_records
from storage.tables.trajectories import Trajectory, read_trajectories
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.episodes.gateway.playing import AGENT_OF_THREE_CALLS
from tests.erl_pipeline.runs.small_runs import SMALL
from tests.integration.killing import Watch, after, seconds_of, start_driver
from tests.random_models import save_byte_llama
from tests.waiting import wait_for

KILLS = int(os.environ.get("ERL_TEST_KILLS", "4"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
RUN = "agents"


@dataclass(frozen=True)
class Undisturbed:
    config: RunConfig
    store: Path
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    save_byte_llama(folder / "model", positions=512, layers=1)
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": f"task {n}"}) + "\n" for n in range(8)))
    changes: dict[str, Any] = {
        "name": RUN,
        "iterations": 1,
        "method": {"type": "rlvr"},
        "environment": {
            "type": "agent",
            "training_file": str(tasks),
            "held_out_share": 0.25,
            "command": ["python", "-S", "agent.py"],
            "files": {"agent.py": str(AGENT_OF_THREE_CALLS)},
        },
        "policy": {"type": "pretrained", "model": str(folder / "model")},
        "sampling": {"max_new_tokens": 6},
        "rollouts": {"tasks_per_iteration": 4, "group_size": 8, "tasks_per_shard": 1},
    }
    config = RunConfig.model_validate({**SMALL, **changes})
    train_to_the_end(config, folder / "store")
    return Undisturbed(config, folder / "store", seconds_of(folder / "store", RUN))


def train_to_the_end(config: RunConfig, store: Path) -> None:
    process = start_driver(config, str(store))
    process.join()
    assert process.exitcode == 0


@dataclass(frozen=True)
class Stored:
    """What the rollouts of a run hold, but for what depends on a batch or on the clock."""

    attempts: dict[str, Trajectory]
    further: dict[str, Trajectory]
    calls: frozenset[tuple[object, ...]]
    counters: Counter[str]


def stored(store: Path) -> Stored:
    """Fails where a row is there twice."""
    artifacts = ArtifactStore(str(store))
    entries = RunStore(str(store)).open(RUN).stages()
    shards = [artifacts.open(entry.artifact_id) for entry in entries if entry.kind == "trajectories"]
    attempts, further = (
        rows_of([shard.path(name) for shard in shards]) for name in (TRAJECTORIES, FURTHER_SEQUENCES)
    )
    calls = scan_agent_calls([shard.path(AGENT_CALLS) for shard in shards])
    found = calls.drop("arrived_ms", "engine_ms", "gateway_ms", "overridden").collect().rows()
    assert len(set(found)) == len(found)
    counters: Counter[str] = Counter()
    for shard in shards:
        counters.update({name: int(count) for name, count in shard.manifest.counters.items()})
    return Stored(attempts, further, frozenset(found), counters)


def rows_of(files: Sequence[Path]) -> dict[str, Trajectory]:
    """Rows by their ids."""
    rows = read_trajectories(files)
    # Attempts that are asked at the same time are sampled in one batch, which changes the last bits.
    found = {row.trajectory_id: replace(row, behaviour_logprobs=()) for row in rows}
    assert len(found) == len(rows)
    return found


def agents_of(process: BaseProcess) -> set[int]:
    """The commands of agents that a run's process has under way."""
    found = set()
    with suppress(FileNotFoundError):  # It has just ended.
        for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in map(int, children.read_text().split()):
                    if "ERL_REPORT_FILE" in variables_of(child):
                        found.add(child)
    return found


def variables_of(process_id: int) -> dict[str, str]:
    """The environment of a process; empty where it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        written = Path(f"/proc/{process_id}/environ").read_bytes().decode()
        return dict(each.split("=", 1) for each in written.split("\0") if "=" in each)
    return {}


def nth_agent(process: BaseProcess, number: int) -> Watch:
    """The moment when the `number`-th agent from now is under way."""
    seen: set[int] = set()

    def moment() -> bool:
        seen.update(agents_of(process))
        return len(seen) >= number

    return moment


@dataclass(frozen=True)
class LeftBehind:
    """What a killed run leaves: agents, by their process ids, and the folders that they work in."""

    agents: Sequence[int]
    folders: Sequence[Path]

    @property
    def is_gone(self) -> bool:
        return not any(map(variables_of, self.agents)) and not any(each.exists() for each in self.folders)

    def wait_until_gone(self) -> None:
        wait_for("the end of the agents and of their folders", lambda: self.is_gone, patience=60.0)


def kill_at(moment: Watch, process: BaseProcess) -> LeftBehind | None:
    """Kill a run's process at a moment; None where it ended before."""
    wait_for(
        "the moment, or the end",
        lambda: process.exitcode is not None or moment(),
        patience=600,
        interval=0.001,
    )
    agents = {agent: variables_of(agent).get("ERL_TASK_FILE") for agent in agents_of(process)}
    process.kill()
    process.join()
    if process.exitcode == 0:
        return None
    assert process.exitcode == -signal.SIGKILL
    return LeftBehind([*agents], [Path(file).parent for file in agents.values() if file is not None])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_killed_while_agents_play_has_each_attempt_once_and_leaves_no_agent_behind(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    expected = stored(undisturbed.store)
    stores = 0
    playing: Counter[int] = Counter()
    while playing.total() < KILLS:
        store = tmp_path / f"disturbed-{stores}"
        while playing.total() < KILLS:
            process = start_driver(undisturbed.config, str(store))
            moment = nth_agent(process, chance.randint(1, 20))
            if chance.random() < 0.3:
                moment = after(chance.uniform(0.0, undisturbed.seconds))
            left = kill_at(moment, process)
            if left is None:
                break
            playing[len(left.agents)] += 1
            left.wait_until_gone()
        train_to_the_end(undisturbed.config, store)
        stores += 1
        assert stored(store) == expected
        assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open(RUN)).problems == []
        assert list((store / "staging").iterdir()) == []
    print(f"\nseed {SEED}: killed {playing.total()} times in {stores} runs of {undisturbed.seconds:.1f} s")
    for agents, times in sorted(playing.items()):
        print(f"  {times:3d} times while {agents} agents were under way")


@dataclass
class AgentKiller:
    """Kills agents of a run at random moments of their attempts, at most `most` of them. Of two that begin
    one after the other never both, since a stage ends in which all have failed.

    `killed` are the numbers that they draw. One that has written its report is left alone: its attempt is
    over.
    """

    chance: random.Random
    most: int
    killed: set[int] = field(default_factory=set)

    def follow(self, process: BaseProcess) -> None:
        """Kill until the run's process has ended."""
        due: dict[int, float | None] = {}
        chosen = False
        while process.exitcode is None:
            for agent in sorted(agents_of(process)):
                if agent not in due:
                    chosen = not chosen and self.chance.random() < 0.7
                    due[agent] = time.monotonic() + self.chance.uniform(0.0, 0.5) if chosen else None
                at = due[agent]
                if at is not None and at <= time.monotonic() and len(self.killed) < self.most:
                    due[agent] = None
                    self._kill(agent)
            process.join(0.001)

    def _kill(self, agent: int) -> None:
        variables = variables_of(agent)
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            process = psutil.Process(agent)
            process.suspend()
            stopped = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
            wait_for("the stop", lambda: process.status() in stopped, interval=0.001)
            if Path(variables.get("ERL_REPORT_FILE", "/")).exists():
                process.resume()
                return
            process.kill()
            self.killed.add(int(variables["ERL_SEED"]) % 10**9)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_agent_that_is_killed_is_not_scored_and_no_other_attempt_changes(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    expected = stored(undisturbed.store)
    drawn = {json.loads(row.metrics)["drawn"]: row.trajectory_id for row in expected.attempts.values()}
    total = runs = 0
    while total < KILLS:
        store = tmp_path / f"disturbed-{runs}"
        process = start_driver(undisturbed.config, str(store))
        killer = AgentKiller(chance, KILLS - total)
        killer.follow(process)
        assert process.exitcode == 0
        lost = {drawn[number] for number in killer.killed & drawn.keys()}
        artifacts = ArtifactStore(str(store))
        found = stored(store)
        assert found.attempts.keys() == expected.attempts.keys()
        for attempt, row in found.attempts.items():
            if attempt in lost:
                assert (row.finish_reason, row.success) == ("environment_error", False)
                assert "the command ended with status -9" in row.feedback
            else:
                assert row == expected.attempts[attempt]
        assert found.counters["environment_errors"] == len(lost)
        evaluations = map(artifacts.open, artifacts.ids("evaluate"))
        counted = sum(each.manifest.counters.get("environment_errors", 0) for each in evaluations)
        assert counted == len(killer.killed) - len(lost)
        kept = {key: row for key, row in expected.further.items() if row.parent_trajectory_id not in lost}
        assert kept.items() <= found.further.items()
        assert {row.parent_trajectory_id for key, row in found.further.items() if key not in kept} <= lost
        assert {call for call in expected.calls if call[0] not in lost} <= found.calls
        (update,) = artifacts.ids("update_policy")
        trained = scan_training_records([artifacts.open(update).path(TRAINING_RECORD_FILE)])
        assert lost.isdisjoint(trained.filter(pl.col("steps") > 0).collect()["trajectory_id"])
        total += len(killer.killed)
        runs += 1
    print(f"\nseed {SEED}: killed {total} agents in {runs} runs of {len(expected.attempts)} attempts")
