"""The flows of the deployments, called in this process: how they end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.states import Completed

from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.runs.driver import open_run
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY
from flows import scheduled, scheduled_run
from flows.scheduled_run import SKIPPED, Overlap, ScheduledRun
from flows.worker import set_device_limit
from storage.errors import RunBusy
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL, FinishedRun, invoke
from tests.erl_pipeline.runs.small_runs import Notes, small
from tests.erl_pipeline.serving.learning.served_traffic import conversations, end, log


def slots_taken(limit: str) -> int:
    with get_client(sync_client=True) as client:
        return client.read_global_concurrency_limit_by_name(limit).active_slots


def make_limit(limit: str) -> None:
    with get_client(sync_client=True) as client:
        assert set_device_limit(client, limit, 1) == 1


@pytest.mark.usefixtures("api")
def test_a_run_is_begun_from_its_configuration_and_goes_on_by_one_iteration(tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(SMALL + "seed: 5\n")
    make_limit("device")
    store = str(tmp_path / "store")
    states = [
        scheduled.iteration("small", store, str(config), concurrency_limit="device", return_state=True)
        for _ in range(2)
    ]
    report = tmp_path / "store" / "runs" / "small" / "report.html"
    assert [state.message for state in states] == [
        f"Committed through iteration 1; report: {report}",
        f"Committed through iteration 2; report: {report}",
    ]
    page = report.read_text(encoding="utf-8")
    assert "2 of 2 iterations" in page
    entries = RunStore(store).open("small").stages()
    assert [entry.iteration for entry in entries if entry.stage == "fine_tune"] == [1, 2]
    assert slots_taken("device") == 0

    done = scheduled.train("small", store, iterations=2, concurrency_limit=None, return_state=True)
    assert done.message == "Nothing to do: committed through iteration 2"
    evaluated = scheduled.evaluate(
        "small", store, tasks=4, samples=0, concurrency_limit=None, return_state=True
    )
    assert evaluated.type == StateType.COMPLETED
    assert evaluated.message is not None
    assert evaluated.message.endswith(" on 4 held-out tasks")

    whole = scheduled.maintain("small", store, garbage_days=0, return_state=True)
    assert str(whole.message).startswith("All is whole: ")
    assert str(whole.message).endswith("Removed what no run reaches: 0 things, 0.0 MB")
    victim = next(Path(store).glob("artifacts/build_distillation/*/sft.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1])
    damaged = scheduled.maintain("small", store, return_state=True)
    assert damaged.type == StateType.FAILED
    assert "sft.parquet" in str(damaged.message)


@pytest.mark.usefixtures("api")
def test_a_night_is_learned_from_traffic(finished: FinishedRun, tmp_path: Path) -> None:
    store = Path(shutil.copytree(finished.store, tmp_path / "store"))
    (tmp_path / "serving.yaml").write_text("learn: {min_episodes: 8}\ngate: {held_out_drop: 2}\n")
    first = ("--checkpoint", "latest", "--without-gate", "--why", "first", "--json")
    serving = invoke("promote", "small", *first, "--store", store).json["checkpoint_id"]

    def night() -> State[Any]:
        settings = str(tmp_path / "serving.yaml")
        return scheduled.learn("small", str(store), settings, concurrency_limit=None, return_state=True)

    log(store, *conversations(store, 7, serving), *[end(f"e{number}") for number in range(7)])
    assert night().message == ("Nothing is trained: 7 of 8 rated episodes (learn.min_episodes) are there")
    log(store, *conversations(store, 1, serving, first=7), end("e7"))
    state = night()
    assert state.type == StateType.COMPLETED
    assert str(state.message).startswith("Night small-night-001: held-out reward ")
    assert str(state.message).endswith("; candidate is now this checkpoint")


def without(nodes: Sequence[PlannedStage], left_out: Sequence[PlannedStage]) -> list[PlannedStage]:
    return [node for node in nodes if node not in left_out]


def test_an_iteration_that_lacks_its_evaluation_is_ended_before_the_next_one(tmp_path: Path) -> None:
    """As when the process was killed after the policy of iteration 2 was committed."""
    config = small(evaluation={"tasks": 2, "every": 9, "samples_per_task": 1})
    run = RunStore(str(tmp_path)).create("small", config.model_dump(mode="json"))

    def next_one() -> int:
        notes = Notes()
        with open_run(config, str(tmp_path), notes, notes.stop) as opened:
            return scheduled._next_iteration(opened)

    plan = plan_run(config, read_sources(config), iterations=3)
    evaluation = plan_run(config, read_sources(config), iterations=2).of_iteration(2)[-1]
    assert evaluation.stage.name == "evaluate"
    assert next_one() == 1
    recorded = []
    through_two = [node for node in plan.nodes if (node.iteration or 0) <= 2]
    # Beside a training a memory may still be at work when the process is killed.
    memory = [node for node in through_two if (node.iteration, node.stage.name) == (2, "index_memory")]
    for nodes in (without(through_two, memory), memory, [evaluation], plan.of_iteration(3)[:1]):
        for node in nodes:
            run.record(
                node.iteration,
                node.stage.name,
                node.artifact_id,
                kind=node.stage.output,
                key=node.place.key,
                reused=False,
                seconds=0.0,
            )
        recorded.append(next_one())
    assert recorded == [2, 2, 3, 3]


@pytest.mark.usefixtures("api")
def test_one_more_iteration_is_not_all_of_them_again(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade that raises a stage's version."""
    store = Path(shutil.copytree(finished.store, tmp_path / "store"))
    later = replace(UPDATE_POLICY, version=UPDATE_POLICY.version + 1)
    monkeypatch.setattr("erl_pipeline.stages.training.update_policy.UPDATE_POLICY", later)
    before = len(RunStore(str(store)).open("small").recorded())
    state = iterate(store, None)
    assert state.type == StateType.FAILED
    assert "today's code makes iterations 1 to 2 of run small again, and not one more" in str(state.message)
    assert len(RunStore(str(store)).open("small").recorded()) == before


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A store with a run that has only been created."""
    from erl_pipeline.config.loading import load_config

    config = tmp_path / "small.yaml"
    config.write_text(SMALL)
    RunStore(str(tmp_path)).create("small", load_config(config, []).model_dump(mode="json"))
    return tmp_path


def iterate(store: Path, limit: str | None) -> State[Any]:
    return scheduled.iteration("small", str(store), concurrency_limit=limit, return_state=True)


@pytest.mark.usefixtures("api")
def test_a_run_that_another_process_has_is_skipped(begun: Path) -> None:
    with RunStore(str(begun)).open("small").lock():
        state = iterate(begun, None)
    assert (state.type, state.name) == (StateType.COMPLETED, SKIPPED)
    assert str(state.message).startswith("Skipped: run small is being worked on by process ")


@pytest.mark.usefixtures("api")
@pytest.mark.parametrize(("overlap", "state"), [("skip", SKIPPED), ("wait", "Completed")])
def test_a_night_is_skipped_or_waits_while_another_process_has_the_run(
    monkeypatch: pytest.MonkeyPatch, overlap: Overlap, state: str
) -> None:
    tries = list[str]()

    def learn(request: ScheduledRun, *_rest: object) -> State[None]:
        tries.append(request.run)
        if len(tries) < 3:
            raise RunBusy("process 3 has it")
        return Completed(message="learned")

    monkeypatch.setattr(scheduled, "_learn", learn)
    monkeypatch.setattr(scheduled_run, "_BUSY_SECONDS", 0.01)
    ended = scheduled.learn("small", "/store", overlap=overlap, return_state=True)
    assert ended.name == state
    assert ended.message == ("learned" if overlap == "wait" else "Skipped: process 3 has it")
    assert len(tries) == (3 if overlap == "wait" else 1)


@pytest.mark.usefixtures("api")
def test_an_error_that_a_user_can_act_on_is_the_message_of_the_state(begun: Path) -> None:
    missing = iterate(begun, "no-such-limit")
    assert missing.type == StateType.FAILED
    assert "prefect gcl create no-such-limit --limit 1" in str(missing.message)
    unknown = scheduled.train("other", str(begun), return_state=True)
    assert "no run other in store" in str(unknown.message)
    (begun / "small.yaml").write_text(SMALL)
    other = scheduled.train("other", str(begun), config=str(begun / "small.yaml"), return_state=True)
    assert str(other.message).endswith("configures run small, not other")
