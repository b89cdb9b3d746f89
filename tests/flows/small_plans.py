"""Plans of tiny stages that need no model; their files show what a runner did with them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from erl_pipeline.config.base import Settings
from erl_pipeline.config.pipeline import NO_NODES_TO_FIND, NodesToFind, ResourcesConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage, RunState
from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin
from erl_pipeline.plan.stage import (
    Listener,
    Needs,
    Stage,
    StageCall,
    StageOutcome,
    StageResult,
    WorkerSettings,
)
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from tests.waiting import wait_for


class SmallSettings(Settings):
    """What a small stage does: see the functions below. It writes marker files for other stages into
    `folder`."""

    name: str
    folder: str = ""


def wait_for_file(path: Path) -> None:
    """Wait until another process has written this marker file."""
    wait_for(str(path), path.exists, interval=0.01)


def _result(call: StageCall[SmallSettings]) -> StageResult:
    names = [artifact.path("names.txt").read_text() for _, artifact in sorted(call.inputs.items())]
    text = "\n".join([*names, call.settings.name])
    (call.folder / "names.txt").write_text(text)
    return StageResult(counters={"names": len(text.splitlines())})


def _write(call: StageCall[SmallSettings]) -> StageResult:
    call.progress.begin(1, "names")
    call.progress.advance(1, names=1.0)
    return _result(call)


def _meet(call: StageCall[SmallSettings]) -> StageResult:
    """As `first`, wait for the marker file of `second`, and the other way round."""
    signs = Path(call.settings.folder)
    other = {"first": "second", "second": "first"}[call.settings.name]
    (signs / call.settings.name).touch()
    wait_for_file(signs / other)
    return _result(call)


def _die_once(call: StageCall[SmallSettings]) -> StageResult:
    died = Path(call.settings.folder) / "died"
    if not died.exists():
        died.touch()
        (call.folder / "half.txt").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    return _result(call)


def _wait_to_stop(call: StageCall[SmallSettings]) -> StageResult:
    (Path(call.settings.folder) / str(os.getpid())).touch()
    wait_for("the wish to stop", call.progress.raise_if_stopped, interval=0.01)  # which raises Interrupted
    return _result(call)


def _say_where(call: StageCall[SmallSettings]) -> StageResult:
    call.progress.warn(f"{call.settings.name} in {os.getpid()}")
    return _result(call)


def _say_variable(call: StageCall[SmallSettings]) -> StageResult:
    call.progress.warn(f"{call.settings.name}={os.environ.get(call.settings.name)}")
    return _result(call)


def _lose_node_once(call: StageCall[SmallSettings]) -> StageResult:
    """End the process that runs this node, which is the parent of this process, and wait until this process
    is ended."""
    lost = Path(call.settings.folder) / "lost"
    if not lost.exists():
        lost.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        wait_for("the end of this process", lambda: False)
    return _result(call)


def _hold(folder: Path, name: str) -> str:
    """A node's part in the training of `BORROW`."""
    with (folder / "held").open("a") as file:
        file.write(f"{name} begins\n")
    (folder / f"{name} began").touch()
    wait_for_file(folder / f"{name} may end")
    with (folder / "held").open("a") as file:
        file.write(f"{name} ends\n")
    return "done"


def _borrow(call: StageCall[SmallSettings]) -> StageResult:
    """Invite the other nodes, and let them go when somebody has been told to wait for them."""
    folder, name = Path(call.settings.folder), call.settings.name
    assert call.resources.other_nodes is not None
    call.resources.other_nodes.invite(partial(_hold, folder, name), call.progress.raise_if_stopped)
    wait_for_file(folder / f"{name} began")
    wait_for_file(folder / "waited")
    (folder / f"{name} may end").touch()
    return _result(call)


def _store_away_once(call: StageCall[SmallSettings]) -> StageResult:
    failed = Path(call.settings.folder) / "failed"
    if not failed.exists():
        failed.touch()
        raise StoreError("no answer")
    return _result(call)


def _say_when(call: StageCall[SmallSettings]) -> StageResult:
    """Append to a file when the stage begins and when it ends, half a second later."""
    for word in ("begins", "ends"):
        with (Path(call.settings.folder) / "moments").open("a") as file:
            file.write(f"{word} {call.settings.name}\n")
        if word == "begins":
            time.sleep(0.5)  # Stages that are let run at the same time are seen by overlapping moments.
    return _result(call)


def _fail(call: StageCall[SmallSettings]) -> StageResult:
    raise OddError(call.settings.name, 7)


@contextmanager
def stop_when_computing(folder: Path, workers: int) -> Iterator[tuple[Event, list[int]]]:
    """A stop request, which is set when this many workers compute `WAIT_TO_STOP` with this folder; and the
    ids of their processes, which are then known."""
    stop, found = Event(), list[int]()

    def all_compute() -> bool:
        found[:] = [int(each.name) for each in folder.iterdir() if each.name.isdigit()]
        return len(found) == workers

    def wait_and_stop() -> None:
        try:
            wait_for(f"{workers} workers", all_compute, interval=0.01)
        finally:
            stop.set()

    waiting = Thread(target=wait_and_stop)
    waiting.start()
    yield stop, found
    waiting.join()


class OddError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} {number}")


def _stage(
    name: str, compute: Callable[[StageCall[SmallSettings]], StageResult], needs: Needs
) -> Stage[SmallSettings]:
    return Stage(name=name, version=1, output="table", settings=SmallSettings, compute=compute, needs=needs)


WRITE = _stage("write", _write, "processor")
WRITE_ON_DEVICE = _stage("write_on_device", _write, "sampling")
SAY_WHERE = _stage("say_where", _say_where, "processor")
SAY_WHERE_ON_DEVICE = _stage("say_where_on_device", _say_where, "sampling")
MEET = _stage("meet", _meet, "processor")
DIE_ONCE = _stage("die_once", _die_once, "processor")
SAY_VARIABLE = _stage("say_variable", _say_variable, "processor")
SAY_VARIABLE_ON_DEVICE = _stage("say_variable_on_device", _say_variable, "sampling")
SAY_VARIABLE_IN_TRAINING = _stage("say_variable_in_training", _say_variable, "training")
MEET_SAMPLING = _stage("meet_sampling", _meet, "sampling")
MEET_TRAINING = _stage("meet_training", _meet, "training")
LOSE_NODE_ONCE = _stage("lose_node_once", _lose_node_once, "processor")
WAIT_TO_STOP = _stage("wait_to_stop", _wait_to_stop, "processor")
BORROW = _stage("borrow", _borrow, "processor")
STORE_AWAY_ONCE = _stage("store_away_once", _store_away_once, "processor")
SAY_WHEN = _stage("say_when", _say_when, "processor")
FAIL = _stage("fail", _fail, "processor")


def planned(
    stage: Stage[SmallSettings],
    name: str,
    inputs: Mapping[str, PlannedStage] | None = None,
    iteration: int = 1,
    folder: Path | None = None,
) -> PlannedStage:
    """One stage of a plan, made by hand."""
    settings = SmallSettings(name=name, folder="" if folder is None else str(folder))
    recipe = Recipe(
        stage=stage.name,
        stage_version=stage.version,
        settings=settings.model_dump(mode="json"),
        inputs={key: each.artifact_id for key, each in (inputs or {}).items()},
        seed=0,
        kind=stage.output,
    )
    return PlannedStage(stage, settings, recipe, iteration, name, recipe.artifact_id)


def chain(length: int, stage: Stage[SmallSettings] = WRITE) -> list[PlannedStage]:
    """Stages each of which reads the result of the one before."""
    stages = [planned(stage, "0")]
    for number in range(1, length):
        stages.append(planned(stage, str(number), {"before": stages[-1]}))
    return stages


class Recorded(Listener):
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def counting(self, title: str, total: int, unit: str) -> None:
        self.told.append(("counting", title, total, unit))

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        self.told.append(("advanced", title, amount, numbers))

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        self.told.append(("waiting", title, what, detail))

    def warn(self, message: str) -> None:
        self.told.append(("warn", message))


def walk(
    plugin: RunnerPlugin[Any],
    settings: Settings,
    store: Path,
    stages: list[PlannedStage],
    *,
    stop: Event | None = None,
    listener: Recorded | None = None,
    resources: ResourcesConfig | None = None,
    trainer: Mapping[str, Any] | None = None,
    nodes: NodesToFind = NO_NODES_TO_FIND,
    background_bytes: int | None = None,
) -> list[StageOutcome]:
    """Execute a plan of these stages by a runner; the outcomes in the order in which they came. `trainer`:
    operational settings of the trainer; `nodes`: what it needs the runner to find. Artifacts of at least
    `background_bytes` are committed beside the next stage."""
    outcomes: list[StageOutcome] = []
    listener, stop = listener or Recorded(), stop or Event()
    resources = resources or ResourcesConfig(threads=1)
    worker = WorkerSettings(store_uri=str(store), run="small", threads=1, trainer=dict(trainer or {}))

    def body(runner: Runner) -> None:
        execute(
            Plan(tuple(stages), (RunState(tasks="", models={}, initial={}),)),
            Execution(
                store=ArtifactStore(str(store)),
                runner=runner,
                worker=worker,
                resources=resources,
                listener=listener,
                record=lambda _node, outcome: outcomes.append(outcome),
                stopped=stop.is_set,
                background_bytes=background_bytes,
            ),
        )

    names = frozenset(each.stage.name for each in stages)
    plugin.run(settings, RunnerCall(worker, resources, listener, stop, nodes=nodes, stages=names), body)
    return outcomes
