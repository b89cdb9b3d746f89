"""The definition of a stage: an object with a name, a version, a kind of output, the settings that it reads,
and `compute`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.resources import Resources
from storage.artifacts.artifact import Artifact
from storage.artifacts.manifest import Determinism
from storage.artifacts.recipe import ArtifactKind

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import CodeOwner, Sources

SettingsT = TypeVar("SettingsT", bound=Settings)

Needs = Literal["device", "processor"]
"""What a stage keeps busy: a device on which models run, or only a processor."""


class Progress(Protocol):
    """Takes reports on how far the stage at work is."""

    def begin(self, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""
        ...

    def advance(self, amount: int, **numbers: float) -> None:
        """`amount` more units are done; `numbers` are what is known of them so far."""
        ...

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long; `detail` is the latest news of it."""
        ...

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""
        ...

    def raise_if_stopped(self) -> None:
        """Raise `Interrupted` when the run was asked to stop."""
        ...


@dataclass(frozen=True)
class StageCall(Generic[SettingsT]):
    """All that a stage's `compute` is given; it can read nothing else.

    `inputs` are opened and verified, by their names in the recipe. Their paths are valid until the stage
    ends; code that keeps an input longer opens it within `resources.store.staying()`. Files of the artifact
    go to `folder`, which is empty. `artifact_id` is the id that the artifact will have; `index` tells apart
    several artifacts of one stage (iteration, shard). `locations` says where the files are whose digests are
    in the settings: SHA-256 -> path.
    """

    settings: SettingsT
    inputs: Mapping[str, Artifact]
    index: Mapping[str, int]
    seed: int
    artifact_id: str
    locations: Mapping[str, str]
    folder: Path
    progress: Progress
    resources: Resources


@dataclass(frozen=True)
class StageResult:
    """What `compute` reports of the files it wrote: numbers for the manifest, and rows of each Parquet file.

    `environment` is what the manifest says, besides the machine, about how it was computed. `unchanged` names
    the input that the artifact repeats, such as the checkpoint of a training without a step: the files that
    both have are then stored once, where the store can do that.
    """

    counters: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    policy_version: str | None = None
    memory_version: str | None = None
    determinism: Determinism = "bytes"
    environment: Mapping[str, str] = field(default_factory=dict)
    unchanged: str = ""


@dataclass(frozen=True)
class Stage(Generic[SettingsT]):
    """One kind of step. The same settings, inputs, index and seed give the same files.

    `version` must change whenever the code behind `compute` would give other bytes; a test checks that
    (`erl_pipeline.plan.versions`). A stage that fails for a temporary reason (`EngineError`, `StoreError`) is
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
    part_of: str = ""
    """The name of the stage to which this one belongs for people, such as a shard to its rollouts."""

    @property
    def shown_as(self) -> str:
        """The name by which people choose it: that of `part_of`, or else its own."""
        return self.part_of or self.name
