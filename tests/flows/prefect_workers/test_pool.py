"""Workers that dial in as plain processes: the same artifacts as `in_process`, whatever is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import pytest

from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.plan.runner import IN_PROCESS, InProcessConfig
from flows.prefect_workers.reception import Invitation
from flows.prefect_workers.recruiting import Asked
from storage.errors import ConfigError
from tests.flows.prefect_workers.dialling import ROOT, Processes, dialling_in, runner_of
from tests.flows.small_plans import (
    DIE_ONCE,
    FAIL,
    MEET,
    SAY_WHERE_ON_DEVICE,
    WAIT_TO_STOP,
    Recorded,
    chain,
    planned,
    stop_when_computing,
    walk,
)
from tests.flows.test_runner import begun, file_hashes


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the run that small plans are for."""
    return begun(tmp_path / "store")


def test_order_outcomes_places_and_bytes(store: Path, tmp_path: Path) -> None:
    # Two of them wait for each other, so if one ran after the other, neither would end.
    meeting = [planned(MEET, "first", folder=store), planned(MEET, "second", folder=store)]
    on_device = chain(3, SAY_WHERE_ON_DEVICE)
    stages = [*chain(3), *on_device, *meeting]
    listener, processes = Recorded(), Processes()
    outcomes = walk(runner_of(processes), dialling_in(), store, stages, listener=listener)

    directly = begun(tmp_path / "directly")
    expected = walk(IN_PROCESS, InProcessConfig(), directly, stages)
    ids = [each.artifact_id for each in stages]
    assert sorted(each.artifact_id for each in outcomes) == sorted(each.artifact_id for each in expected)
    assert file_hashes(store, ids) == file_hashes(directly, ids)
    assert ("advanced", "write 0 of iteration 1", 1, {"names": 1.0}) in listener.told

    # The model that a stage has loaded is there for the next.
    told = [str(each[1]) for each in listener.told if each[0] == "warn"]
    said = dict(message.split(" in ") for message in told)
    assert len({said[each.key] for each in on_device}) == 1
    computed = [(status, message.split()[1]) for status, message in processes.said()]
    assert [status for status, _ in computed] == [0, 0]
    assert sum(int(count) for _, count in computed) == len(stages)
    assert sorted(each.name for each in store.iterdir()) == [
        "artifacts",
        "first",
        "runs",
        "second",
        "staging",
    ]


def test_a_worker_that_is_killed_is_replaced_and_its_stage_computed_again(store: Path) -> None:
    listener, processes = Recorded(), Processes()
    died = planned(DIE_ONCE, "survivor", folder=store)
    with pytest.raises(RuntimeError, match=r"OddError: after 7"):
        walk(
            runner_of(processes),
            dialling_in(workers=1),
            store,
            [died, planned(FAIL, "after", {"it": died})],
            listener=listener,
        )
    (names,) = file_hashes(store, [died.artifact_id])
    assert list(names) == ["names.txt"]
    (warning,) = [str(each[1]) for each in listener.told if each[0] == "warn"]
    assert warning.startswith("die_once survivor of iteration 1: the worker on ")
    assert warning.endswith("(flow run 'worker 1') is gone. It is computed again.")
    assert processes.said() == [(-9, ""), (0, "computed 2 stages")]


def test_workers_that_compute_stop_when_they_are_asked_to(store: Path, tmp_path: Path) -> None:
    processes = Processes()
    stages = [planned(WAIT_TO_STOP, name, folder=tmp_path) for name in ("one", "two")]
    with stop_when_computing(tmp_path, workers=2) as (stop, _), pytest.raises(Interrupted):
        walk(runner_of(processes), dialling_in(), store, stages, stop=stop)
    assert processes.said() == [(0, "computed 1 stage"), (0, "computed 1 stage")]


def test_a_machine_with_other_code_is_refused_before_the_first_stage(store: Path, tmp_path: Path) -> None:
    for package in ("storage", "erl_pipeline", "flows"):
        unused = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / "other" / package, ignore=unused)
    with (tmp_path / "other" / "storage" / "errors.py").open("a") as source:
        source.write("# a difference\n")
    processes = Processes(code=tmp_path / "other")
    with pytest.raises(ConfigError, match=r"node .*: the code of erl-pipeline differs: install the same"):
        walk(runner_of(processes), dialling_in(workers=1), store, chain(1))
    ((status, message),) = processes.said()
    assert status == 0
    assert message.endswith("needed no worker")
    assert not list((store / "artifacts").glob("*"))


def test_workers_that_do_not_come_in_time_are_refused_and_cancelled(store: Path) -> None:
    processes = Processes(starts=1)
    with pytest.raises(ConfigError) as refused:
        walk(runner_of(processes), dialling_in(start_seconds=2), store, chain(1))
    lines = str(refused.value).splitlines()
    assert lines[0] == "runner.workers: 2: not all of them came:"
    assert lines[1].endswith("has not dialled in within 2 s: Late")
    assert "--limit" in lines[2]
    assert len(processes.cancelled) == 1
    ((status, message),) = processes.said()
    assert (status, message.endswith("needed no worker")) == (0, True)


class Crashes(Processes):
    """Flow runs that end before they dial in."""

    def state(self, asked: Asked) -> tuple[bool, str]:
        return True, f"Crashed, {asked.name} has no such module"


def test_a_flow_run_that_ends_before_it_dials_in_is_refused_at_once(store: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"ended before it dialled in: Crashed, worker 1 has no such module"
    ):
        walk(runner_of(Crashes(starts=0)), dialling_in(workers=1), store, chain(1))


class Stops(Processes):
    """The user asks for a stop while workers are awaited."""

    def __init__(self, stop: Event) -> None:
        super().__init__(starts=0)
        self._stop = stop

    def state(self, asked: Asked) -> tuple[bool, str]:
        raise AssertionError(f"{asked.name} is awaited after the stop")

    def ask(self, place: int, invitation: Invitation) -> Asked:
        self._stop.set()
        return super().ask(place, invitation)


def test_a_stop_while_workers_are_awaited_cancels_them(store: Path) -> None:
    stop = Event()
    starter = Stops(stop)
    with pytest.raises(Interrupted):
        walk(runner_of(starter), dialling_in(), store, chain(1), stop=stop)
    assert sorted(starter.cancelled) == ["worker 1", "worker 2"]
