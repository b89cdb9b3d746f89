"""The definition of a stage: an object with a name, a version, a kind of output, the settings that it reads,
and `compute`; what a worker process keeps between stages, such as models in memory and servers; and
what stages do, reported to a progress display, a log, or nobody.

No artifact id depends on what is kept, nor on its settings. Bytes depend on the number of threads, so every
manifest records it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from erl_pipeline.config.base import Settings
from erl_pipeline.network import OtherNodes
from storage.artifacts.artifact import Artifact
from storage.artifacts.cache import CacheSettings
from storage.artifacts.late_files import LateFiles
from storage.artifacts.manifest import Determinism
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import Interrupted
from storage.filesystem import open_root

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import CodeOwner, Sources


T = TypeVar("T")


@dataclass(frozen=True)
class WorkerSettings:
    """All that a worker process needs to know besides the planned stage. `engine` and `trainer` hold the
    operational settings of the two, such as servers and deadlines, which no artifact depends on."""

    store_uri: str
    run: str
    threads: int
    engine: dict[str, Any] = field(default_factory=dict)
    cache: CacheSettings = field(default_factory=CacheSettings)
    """What the worker's machine caches of a store in a bucket."""
    deterministic: bool = False
    """Whether GPUs are to give equal bytes for equal work (`resources.determinism`)."""
    trainer: dict[str, Any] = field(default_factory=dict)
    weights_in_memory: bool = False
    """Whether new weights are put into this machine's memory, for an engine that takes them from there."""


class Resources:
    """What the stages of one process share. Close it when no stage is at work any more.

    Args:
        other_nodes: machines that the runner keeps for trainings; None where it keeps none.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        stop: threading.Event | None = None,
        store: ArtifactStore | None = None,
        other_nodes: OtherNodes | None = None,
    ) -> None:
        self.settings = settings
        self.store = store or ArtifactStore(settings.store_uri, settings.threads, settings.cache)
        self.stop = stop or threading.Event()
        """Set when the run was asked to stop. A stage checks the `stop` of its `StageProgress` instead."""
        self.other_nodes = other_nodes
        self._kept: dict[str, Any] = {}
        self._open = ExitStack()
        self._lock = threading.RLock()

    @property
    def late_files(self) -> LateFiles:
        """Writes files of artifacts beside the stages that come next."""
        return self.keep("late files", LateFiles)

    @property
    def scratch(self) -> Path:
        """A folder on this machine for files that are not artifacts, such as a server's log."""
        return open_root(self.store.uri).scratch / "runs" / self.settings.run

    @property
    def deterministic(self) -> bool:
        """Whether GPUs are to give equal bytes for equal work."""
        return self.settings.deterministic

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returned for this name; it is called once for each name. If it returns a context
        manager, that is entered now, and left when the resources are closed."""
        with self._lock:
            if name not in self._kept:
                made = make()
                if hasattr(made, "__enter__"):
                    made = self._open.enter_context(made)  # type: ignore[arg-type]
                self._kept[name] = made
            kept: T = self._kept[name]
            return kept

    def kept(self, name: str) -> Any | None:
        """What `keep` has made under this name; None if nothing."""
        return self._kept.get(name)

    def close(self) -> None:
        """End what was started."""
        self._kept.clear()
        self._open.close()

    def __enter__(self) -> Resources:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


SettingsT = TypeVar("SettingsT", bound=Settings)

Needs = Literal["processor", "sampling", "training"]
"""What a stage keeps busy: only a processor, or a device on which models are sampled from, or trained or
scored by a trainer. `resources.groups` gives the last two their own devices."""


@dataclass(frozen=True)
class StageOutcome:
    """A committed artifact and the numbers of its manifest. `seconds` is wall time, small when `reused`;
    `making_seconds` is the time for making the artifact, by its manifest, as in all tables.

    `made_by` is the run that made a reused artifact.
    """

    stage: str
    kind: ArtifactKind
    iteration: int | None
    key: str
    artifact_id: str
    reused: bool
    seconds: float
    making_seconds: float
    made_by: str
    counters: Mapping[str, float]
    metrics: Mapping[str, float]


class Listener:
    """Takes reports on stages, which it knows by their titles, such as `fine_tune of iteration 3`. May be
    called from any thread. This one shows nothing; others show what they override."""

    def stage_started(self, title: str) -> None:
        """The computation of a stage has begun."""

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long; `detail` is the latest news of it."""

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """The artifact is committed and recorded."""

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""


class StageProgress:
    """Reports the progress of one stage to a listener."""

    def __init__(self, title: str, listener: Listener, stop: threading.Event) -> None:
        self._title = title
        self._listener = listener
        self.stop = stop
        """Set when the stage is to stop: the run was asked to, or the stage takes too long."""

    def begin(self, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""
        self._listener.counting(self._title, total, unit)

    def advance(self, amount: int, **numbers: float) -> None:
        """`amount` more units are done; `numbers` are what is known of them so far."""
        self._listener.advanced(self._title, amount, numbers)

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long."""
        self._listener.waiting(self._title, what, seconds, detail)

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""
        self._listener.warn(message)

    def raise_if_stopped(self) -> None:
        """Raise `Interrupted` when the stage is to stop."""
        if self.stop.is_set():
            raise Interrupted


@dataclass(frozen=True)
class NextStage:
    """A stage that differs from another one by its index alone, and for which its worker is asked next."""

    artifact_id: str
    index: Mapping[str, int]


@dataclass(frozen=True)
class StageCall(Generic[SettingsT]):
    """All that a stage's `compute` is given; it can read nothing else.

    `inputs` are opened and verified, by their names in the recipe. Their paths are valid until the stage
    ends; code that keeps an input longer opens it within `resources.store.staying()`. Files of the artifact
    go to `folder`, which is empty. `artifact_id` is the id that the artifact will have; `index` tells apart
    several artifacts of one stage (iteration, shard). `locations` says where the files are whose digests are
    in the settings: SHA-256 -> path. `state`: whether a checkpoint is written with the state of the
    optimizer. `following` are the next stages, which a stage that `begins_next` may begin. `may_write_later`:
    whether `compute` may return while files are still being written.
    """

    settings: SettingsT
    inputs: Mapping[str, Artifact]
    index: Mapping[str, int]
    seed: int
    artifact_id: str
    locations: Mapping[str, str]
    folder: Path
    progress: StageProgress
    resources: Resources
    state: bool = True
    following: tuple[NextStage, ...] = ()
    may_write_later: bool = False


@dataclass(frozen=True)
class StageResult:
    """What `compute` reports of the files it wrote: numbers for the manifest, and rows of each Parquet file.

    `environment` is what the manifest says, besides the machine, about how it was computed. `unchanged` names
    the input that the artifact repeats, such as the checkpoint of a training without a step: the files that
    both have are then stored once, where the store can do that. `late` are the sizes, in bytes, of files that
    are still being written.
    """

    counters: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    policy_version: str | None = None
    memory_version: str | None = None
    determinism: Determinism = "bytes"
    environment: Mapping[str, str] = field(default_factory=dict)
    unchanged: str = ""
    late: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage(Generic[SettingsT]):
    """One kind of step. The same settings, inputs, index and seed give the same files.

    `version` must change whenever the code behind `compute` would give other bytes; a test checks that
    (`tests/stage_versions.py`). A stage that fails for a temporary reason (`EngineError`, `StoreError`) is
    tried again after each of `retry_seconds`. The module of a stage imports torch only within functions, so
    that planning is fast.
    """

    name: str
    version: int
    output: ArtifactKind
    settings: type[SettingsT]
    compute: Callable[[StageCall[SettingsT]], StageResult]
    slice: Callable[[RunConfig, Sources], SettingsT] | None = None
    """Takes the settings from a run's configuration; None if the code that plans the stage gives them."""
    code: tuple[CodeOwner, ...] = ()
    """Whose code, as far as people edit it, is part of the recipe."""
    needs: Needs = "processor"
    retry_seconds: tuple[float, ...] = ()
    begins_next: bool = False
    """Whether it begins what it is asked for next while it waits for the last of its own results."""
    part_of: str = ""
    """The name of the stage to which this one belongs for people, such as a shard to its rollouts."""

    @property
    def shown_as(self) -> str:
        """The name by which people choose it: that of `part_of`, or else its own."""
        return self.part_of or self.name
