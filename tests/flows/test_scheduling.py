"""A real server and worker: scheduled flows run, wait for a device, overlap, are skipped, and end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from storage.runs.run import RunStore
from tests.command_line.invoke import Result, invoke
from tests.flows.served import Served, alive, ended, serve
from tests.integration.runs import small_config
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow]

LEASE = {"names": ["gpu"], "slots": 1, "mode": "concurrency", "lease_duration": 600}


@dataclass
class Workplace:
    """A served folder with a configuration for each of its runs."""

    served: Served
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def schedule(self, *words: str) -> Result:
        """`erl-pipeline schedule` with these words, which must succeed."""
        # Other tests of this folder have a server of their own.
        with temporary_settings(restore_defaults={PREFECT_API_URL}):
            result = invoke("schedule", *words, "--port", self.served.port)
        assert result.status == 0, result.errors
        return result

    def begin(self, run: str, *words: str) -> Result:
        """Schedule a flow of a run with a seed of its own, so that it shares no artifact with another."""
        config = self.folder / f"{run}.yaml"
        config.write_text(small_config(1) + f"seed: {ord(run)}\n")
        return self.schedule(run, "--config", str(config), "--store", str(self.store), *words)

    def iterations(self, run: str) -> list[int]:
        """The iterations of a run that are committed, in the order of the ledger."""
        entries = RunStore(str(self.store)).open(run).stages()
        return [entry.iteration or 0 for entry in entries if entry.stage == "fine_tune"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """Three runs whose flows overlap, while the test holds the only slot for devices. `a` is due every five
    seconds and skips; `b` gets two flows at the same time; `c` is due twice and waits.
    """
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PREFECT_HOME", str(folder / "home"))
        environment.delenv("PREFECT_API_URL", raising=False)
        environment.chdir(folder)
        served = serve(folder / "home", "--limit", "8", "--gpus", "1")
        place = Workplace(served, folder)
        try:
            lease = served.ask("v2/concurrency_limits/increment-with-lease", **LEASE)
            place.begin("b", "--once", "--flow", "train")
            place.begin("b", "--once")
            place.begin("c", "--once", "--overlap", "wait")
            place.begin("c", "--once", "--overlap", "wait")
            place.begin("a", "--every", "5s")
            # Ask rarely and wait long: sometimes Prefect's server does nothing for a minute here, which is
            # how long its writers wait for SQLite; and beside other tests each flow run takes long to start.
            for what, holds in (
                ("a skip of a", lambda: of_state(place, "a", "one-iteration", "Cancelled")),
                ("a skip of b", lambda: skipped(place)),
                ("a wait of c", lambda: of_state(place, "c", "one-iteration", "AwaitingConcurrencySlot")),
            ):
                wait_for(what, holds, interval=0.5, patience=600.0)
            place.schedule("pause", "a")
            assert [place.iterations(run) for run in "abc"] == [[], [], []]
            served.ask("v2/concurrency_limits/decrement-with-lease", lease_id=lease["lease_id"])
            yield place
        finally:
            ended(served)


def of_state(place: Workplace, run: str, flow: str, state: str) -> list[dict[str, Any]]:
    return [each for each in place.served.flow_runs(run, flow) if each["state_name"] == state]


def skipped(place: Workplace) -> list[dict[str, Any]]:
    return [each for flow in ("train", "one-iteration") for each in of_state(place, "b", flow, "Skipped")]


def test_a_flow_that_is_due_now_trains_an_iteration_into_the_store(workplace: Workplace) -> None:
    assert wait_for("iteration 1 of b", lambda: workplace.iterations("b")) == [1]


def test_a_schedule_trains_until_it_is_paused(workplace: Workplace) -> None:
    (row,) = [each for each in workplace.schedule("list", "--json").json if each["run"] == "a"]
    assert (row["schedule"], row["paused"], row["next"]) == ("every 5s", True, None)
    wait_for("the end of a", lambda: of_state(workplace, "a", "one-iteration", "Completed"))
    assert workplace.iterations("a") == [1]


def test_a_schedule_that_fires_too_early_is_skipped_and_says_so(workplace: Workplace) -> None:
    one = of_state(workplace, "a", "one-iteration", "Cancelled")[0]
    assert one["state"]["message"] == "Deployment concurrency limit reached."
    assert one["run_count"] == 0
    (row,) = [each for each in workplace.schedule("list", "--json").json if each["run"] == "a"]
    assert row["why_skipped"] == "skipped: the one before it was still at work"
    assert row["skipped"] is not None


def test_flows_that_wait_for_the_last_one_run_after_it(workplace: Workplace) -> None:
    wait_for("both of c", lambda: workplace.iterations("c") == [1, 2])
    wait_for("the end of c", lambda: len(of_state(workplace, "c", "one-iteration", "Completed")) == 2)
    # When two are due at the same time, the server decides which gets the slot first.
    first, second = sorted(
        of_state(workplace, "c", "one-iteration", "Completed"), key=lambda r: r["start_time"]
    )
    assert first["end_time"] <= second["start_time"]


def test_of_two_processes_on_one_run_one_works_and_the_other_is_told(workplace: Workplace) -> None:
    (other,) = skipped(workplace)
    assert other["state"]["message"].startswith("Skipped: run b is being worked on by process ")
    assert other["state_type"] == "COMPLETED"
    wait_for("iteration 1 of b", lambda: workplace.iterations("b") == [1])


def test_runs_take_turns_on_the_one_device(workplace: Workplace) -> None:
    wait_for("b and c", lambda: workplace.iterations("b") == [1] and workplace.iterations("c") == [1, 2])
    runs = RunStore(str(workplace.store))
    entries = [(entry.recorded_at, run) for run in "bc" for entry in runs.open(run).stages()]
    order = [run for _, run in sorted(entries)]
    turns = [run for run, before in zip(order, ["", *order], strict=False) if run != before]
    # c may have its second turn before b has its own.
    assert turns in (["b", "c"], ["c", "b"], ["c", "b", "c"])
    waited = [
        line
        for flow in ("train", "one-iteration")
        for each in workplace.served.flow_runs("b", flow)
        for line in workplace.served.log(each)
    ]
    assert "Waiting for a slot of the concurrency limit 'gpu': all are taken" in waited


def test_the_metrics_count_what_the_flow_runs_did(workplace: Workplace) -> None:
    wait_for("the end of c", lambda: len(of_state(workplace, "c", "one-iteration", "Completed")) == 2)
    metrics = workplace.served.metrics()
    assert metrics["erl_pipeline_iterations_done", "c"] == 2
    assert metrics["erl_pipeline_flow_runs_total", "iteration", "completed", "c"] == 2
    assert metrics["erl_pipeline_stage_seconds_count", "c", "fine_tune"] == 2
    assert metrics["erl_pipeline_generated_tokens_total", "c"] > 0
    assert 0 <= metrics["erl_pipeline_held_out_success", "c"] <= 1


def test_a_removed_schedule_is_gone_and_the_run_is_not(workplace: Workplace) -> None:
    workplace.schedule("remove", "a")
    assert "a" not in [each["run"] for each in workplace.schedule("list", "--json").json]
    assert RunStore(str(workplace.store)).open("a").stages()


def test_ctrl_c_stops_flow_runs_and_ends_worker_and_server(workplace: Workplace) -> None:
    served = workplace.served
    workplace.begin("c", "--once", "--flow", "train", "--iterations", "500")
    wait_for("c to train", lambda: any("c: train begins" in line for line in list(served.lines)))
    members = served.members()
    assert len(members) >= 2  # the server, and the process of the flow run
    assert served.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert alive(members) == []
    assert served.lines[-1].startswith("Stopped; schedules are kept")


def test_a_killed_worker_leaves_nothing_behind_and_its_flow_run_goes_on_later(
    workplace: Workplace,
) -> None:
    """This test runs after the others, since it serves the same folder again."""
    served = serve(workplace.folder / "home", "--gpus", "1")
    place = Workplace(served, workplace.folder)
    try:
        (stopped,) = served.flow_runs("c", "train")
        assert stopped["state_name"] == "Cancelled"
        assert stopped["state"]["message"] == "Asked to stop; what was committed is kept"
        served.ask("v2/concurrency_limits/increment-with-lease", **LEASE)
        place.begin("d", "--once")
        wait_for("d to begin", lambda: any("d: iteration begins" in line for line in list(served.lines)))
        members = served.members()
        assert len(members) >= 2  # the server, and the process of the flow run
        served.process.kill()
        served.process.wait()
        wait_for("the end of all", lambda: alive(members) == [])
    finally:
        ended(served)
    again = serve(workplace.folder / "home", "--gpus", "2")
    try:
        wait_for("iteration 1 of d", lambda: place.iterations("d") == [1])
        (flow_run,) = again.flow_runs("d", "one-iteration")
        assert flow_run["run_count"] == 2
    finally:
        again.stop(signal.SIGTERM)
        ended(again)
