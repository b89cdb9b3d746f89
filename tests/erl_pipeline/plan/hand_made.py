"""Stages, plans and runners made by hand, for tests of how plans are executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from erl_pipeline.config.base import Settings
from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from erl_pipeline.plan.runner import InProcessRunner, Made, Runner, StageJob, compute
from erl_pipeline.plan.stage import (
    Listener,
    Resources,
    Stage,
    StageCall,
    StageOutcome,
    StageProgress,
    StageResult,
    WorkerSettings,
)
from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.artifacts.store import ArtifactStore

Hook = Callable[[StageCall[Any]], None]
"""Called when a stage is computed, before it writes its file."""


class Word(Settings):
    """The only setting of a stage."""

    word: str = ""


def planned(
    name: str,
    inputs: Sequence[PlannedStage] = (),
    hook: Hook = lambda _call: None,
    *,
    iteration: int | None = None,
    key: str = "",
    kind: ArtifactKind = "table",
    word: str = "",
    **declared: Any,
) -> PlannedStage:
    """A stage that writes its word and the ids of its inputs; one of kind `rollouts` writes nothing.

    Args:
        declared: other fields of its `Stage`.
    """

    def write(call: StageCall[Word]) -> StageResult:
        hook(call)
        if kind == "rollouts":
            return StageResult()
        read = [made.manifest.artifact_id for made in call.inputs.values()]
        (call.folder / "file").write_text(" ".join([call.settings.word, *read]))
        return StageResult(counters={"inputs": len(read)})

    stage = Stage(name=name, version=1, output=kind, settings=Word, compute=write, **declared)
    settings = Word(word=word)
    recipe = Recipe(
        stage=name,
        stage_version=1,
        settings=settings.model_dump(),
        inputs={f"input-{number}": node.artifact_id for number, node in enumerate(inputs)},
        seed=0,
        index={} if iteration is None else {"iteration": iteration},
        kind=kind,
    )
    return PlannedStage(stage, settings, recipe, iteration, key, recipe.artifact_id)


class Notes(Listener):
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.made: list[str] = []
        self.reused: list[str] = []

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        (self.reused if outcome.reused else self.made).append(title)

    def warn(self, message: str) -> None:
        self.warnings.append(message)


class ThreadRunner:
    """Computes stages in threads, so that several run at the same time."""

    retries = False
    shares_files = True

    def __init__(self, resources: Resources, workers: int) -> None:
        self.workers = workers
        self._resources = resources
        self._pool = ThreadPoolExecutor(workers)

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, job: StageJob) -> Future[Made]:
        progress = StageProgress(job.planned.title, Listener(), self._resources.stop)
        return self._pool.submit(compute, job, self._resources, progress)

    def finished(self, outcome: StageOutcome) -> None:
        """Not shown."""


@dataclass
class Bench:
    """A store and everything else that is needed to execute a plan; `ledger` has what was recorded, in
    order."""

    folder: Path
    stop: Event = field(default_factory=Event)
    ledger: list[tuple[StageKey, str, bool]] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)

    @property
    def uri(self) -> str:
        return str(self.folder / "store")

    def execute(
        self,
        *nodes: PlannedStage,
        trusted: frozenset[StageKey] = frozenset(),
        workers: int | None = None,
        resources: ResourcesConfig | None = None,
        runner: Callable[[Resources], Runner] | None = None,
        background_bytes: int | None = None,
    ) -> Notes:
        """Execute a plan of these stages as a new process would; with `workers`, in threads."""
        self.notes = Notes()
        worker = WorkerSettings(self.uri, "run", threads=1)
        with Resources(worker, self.stop) as kept:
            chosen: Runner
            if runner is not None:
                chosen = runner(kept)
            elif workers is not None:
                chosen = ThreadRunner(kept, workers)
            else:
                chosen = InProcessRunner(kept, self.notes)
            execute(
                Plan(nodes, ()),
                Execution(
                    store=ArtifactStore(self.uri, threads=1),
                    runner=chosen,
                    worker=worker,
                    resources=resources or ResourcesConfig(),
                    listener=self.notes,
                    record=self._record,
                    stopped=self.stop.is_set,
                    trusted=trusted,
                    background_bytes=background_bytes,
                ),
            )
        return self.notes

    def committed(self) -> set[str]:
        """Ids of all artifacts of the store; each artifact is complete."""
        store = ArtifactStore(self.uri)
        return {store.open(manifest.artifact_id).manifest.artifact_id for manifest in store.list()}

    def recorded(self) -> Mapping[StageKey, str]:
        """The artifact that was recorded last at each place."""
        return {place: artifact_id for place, artifact_id, _ in self.ledger}

    def damage(self, node: PlannedStage) -> None:
        """Change a byte of an artifact's file."""
        folder = self.folder / "store" / "artifacts" / node.stage.name / node.artifact_id
        (folder / "file").write_bytes(b"#" + (folder / "file").read_bytes()[1:])

    def _record(self, node: PlannedStage, outcome: StageOutcome) -> None:
        self.ledger.append((node.place, outcome.artifact_id, outcome.reused))
