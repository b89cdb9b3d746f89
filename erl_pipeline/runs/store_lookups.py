"""What the runs of a store tell about the stages of a plan: which artifacts are there, how long stages took,
and how large they are."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from erl_pipeline.config.shown import settings_differences
from erl_pipeline.plan.forecast import Cost, PreviousArtifact, own_differences
from erl_pipeline.plan.plan import PlannedStage, StageKey
from erl_pipeline.policies.checkpoints import lacks_state
from erl_pipeline.runs.config import type_of
from erl_pipeline.runs.planning import recorded_ids
from erl_pipeline.runs.state import place_of
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.ledger import LedgerEntry
from storage.runs.run import RunStore
from storage.upkeep.offered import files_of, rules_about
from storage.upkeep.rules import Kept

_GROUPS = ("policy", "environment", "trainer")
_STARTS = ("cold_start", "warm_start")


def _model(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that say which model a run trains; None for a run without a policy."""
    policy = settings.get("policy")
    if not isinstance(policy, Mapping):
        return None
    return {key: value for key, value in policy.items() if key not in _STARTS}


MEASURED = 5
"""How many of a stage's newest artifacts in one run are used: its expected cost is their median."""

_COMPARED = 64
_OTHERS = 8
_KINDRED = ("environment", "policy")
"""Groups of settings whose `type` two runs must share for their differences to say something."""
_GENERATING = ("trajectories", "evaluation")
_NO_SETTINGS = ("name", "iterations", "runner", "resources", "store", "metrics", "retention", "warnings")


class StoreLookups:
    """A forecast's `Lookups` in a store. Ledgers and manifests are read when they are first needed.

    Args:
        config: the configuration that is planned. It is compared with the run of its name or, if there is
            none, with the run whose settings differ least.
        others: False: compare with the run of that name only, and give no costs.
    """

    def __init__(
        self,
        store_uri: str,
        config: Mapping[str, Any],
        *,
        others: bool = True,
        entries: Sequence[LedgerEntry] | None = None,
    ) -> None:
        self._store = ArtifactStore(store_uri)
        self._runs = RunStore(store_uri)
        self._config = config
        self._name: str = config["name"]
        self._others = others
        self._committed: dict[str, frozenset[str]] = {}
        self._costs: dict[str, Cost] = {}
        self._opened: dict[str, ReadLedger] = {}
        if entries is not None:
            self._opened[self._name] = ReadLedger(config, entries)
        self._compared: Counter[tuple[str, str]] = Counter()
        self._newest: dict[tuple[str, str], tuple[str, ...]] = {}
        self._measured: dict[str, tuple[str, Sequence[Manifest]]] = {}

    def made_by(self, node: PlannedStage) -> str | None:
        """The run that made the artifact of a stage; None if it is not committed."""
        stage = node.stage.name
        if stage not in self._committed:
            self._committed[stage] = frozenset(self._store.ids(stage))
        if node.artifact_id not in self._committed[stage]:
            return None
        if node.artifact_id in self._makers:
            return self._makers[node.artifact_id]
        manifest = self.manifest(node.artifact_id, stage)
        return manifest.run if manifest is not None else None

    def earlier(self, node: PlannedStage) -> PreviousArtifact | None:
        """The artifact at the place of a stage in the run with which the configuration is compared.

        After the first 64 artifacts of a stage, the differences of the last compared one are used for all
        further ones, since settings are the same in all iterations of a run.
        """
        run = self._compared_with
        artifact_id = None if run is None else self.ledger(run).places.get(node.place)
        if run is None or artifact_id is None:
            return None
        if self._compared[run, node.stage.name] >= _COMPARED:
            return PreviousArtifact(run, artifact_id, self._newest.get((run, node.stage.name), ()))
        self._compared[run, node.stage.name] += 1
        manifest = self.manifest(artifact_id, node.stage.name)
        if manifest is None:
            return PreviousArtifact(run, artifact_id)
        differences = own_differences(manifest.recipe, node.recipe, self._changed(run))
        self._newest[run, node.stage.name] = differences
        return PreviousArtifact(run, artifact_id, differences, manifest.inputs)

    def cost(self, stage: str) -> Cost:
        """The median cost of the artifacts of a stage that `measured` gives."""
        if not self._others:
            return Cost()
        if stage not in self._costs:
            self._costs[stage] = _median_cost(self.measured(stage)[1])
        return self._costs[stage]

    def size(self, stage: str) -> ArtifactSize | None:
        """The size on disk of the newest artifact of a stage, in the first of `alike` that has one; None if
        there is none. A checkpoint that lacks the state of its optimizer does not count. No other manifest is
        read, since each start of a run asks for sizes."""
        for run in self.alike():
            for artifact_id in self.ledger(run).newest.get(stage, ()):
                manifest = self.manifest(artifact_id, stage)
                if manifest is not None and not lacks_state(manifest):
                    return artifact_size(manifest)
        return None

    def measured(self, stage: str) -> tuple[str, Sequence[Manifest]]:
        """The first of `alike` that has artifacts of a stage, and the manifests of its newest ones; an empty
        name and none if there is no such run."""
        if stage not in self._measured:
            found = ((run, self._newest_of(stage, run)) for run in self.alike())
            self._measured[stage] = next((each for each in found if each[1]), ("", ()))
        return self._measured[stage]

    def alike(self) -> Iterator[str]:
        """The runs that train the same model: that of the same name, then those with the same policy,
        environment and trainer, then the others; of these, the one whose settings differ least is first.

        The other runs of the store are read only when one of them is asked for.
        """
        if self._exists and self._same_model(self._name):
            yield self._name
        yield from self._others_alike

    def groups_alike(self, run: str) -> tuple[str, ...]:
        """Which of policy, environment and trainer a run has in common with the configuration."""
        config = self.ledger(run).config
        return tuple(group for group in _GROUPS if config.get(group) == self._config.get(group))

    def _same_model(self, run: str) -> bool:
        """Whether a run's policy has the same architecture, precision and adapter. How it is trained before
        the first iteration does not count."""
        model = _model(self.ledger(run).config)
        return model is not None and model == _model(self._config)

    def _newest_of(self, stage: str, run: str) -> Sequence[Manifest]:
        newest = self.ledger(run).newest.get(stage, ())
        return [manifest for each in newest if (manifest := self.manifest(each, stage)) is not None]

    def manifest(self, artifact_id: str, stage: str) -> Manifest | None:
        """The manifest of an artifact; None if there is none that can be read."""
        # A damaged artifact is reported when it is opened; a forecast goes on without it.
        with suppress(StoreError):
            return self._store.find(artifact_id, stage)
        return None

    def ledger(self, run: str) -> ReadLedger:
        """What a run of the store has recorded."""
        if run not in self._opened:
            self._opened[run] = _read_ledger(self._runs, run)
        return self._opened[run]

    @cached_property
    def _exists(self) -> bool:
        return self._name in self._opened or self._name in self._runs.list()

    @cached_property
    def _names(self) -> Sequence[str]:
        """Runs of the store that have recorded something."""
        return [name for name in self._runs.list() if self.ledger(name).entries]

    @cached_property
    def _makers(self) -> Mapping[str, str]:
        """Artifact -> the run that computed it."""
        return {
            entry.artifact_id: run
            for run in self._names
            for entry in self.ledger(run).entries
            if not entry.reused
        }

    @cached_property
    def _others_alike(self) -> Sequence[str]:
        others = [
            name
            for name in (self._names if self._others else ())
            if name != self._name and self._same_model(name)
        ]
        return sorted(others, key=lambda name: (-len(self.groups_alike(name)), *self._distance(name)))

    @cached_property
    def nearest(self) -> Sequence[str]:
        """The run of the same name, then those whose settings differ least; of equals, the newest first."""
        own = [self._name] if self._exists else []
        others = [name for name in self._names if name != self._name] if self._others else []
        return [*own, *sorted(others, key=self._distance)[:_OTHERS]]

    def _distance(self, run: str) -> tuple[int, float]:
        """How many settings of a run differ; of equals, the newest is the nearest."""
        return len(self._changed(run)), -self.ledger(run).entries[-1].recorded_at.timestamp()

    @cached_property
    def _compared_with(self) -> str | None:
        """The run of the same name, else the nearest other; None if that one has another environment or
        another type of policy, so that every setting of these would be a difference."""
        run = next((run for run in self.nearest if self.ledger(run).entries), None)
        if run is None or run == self._name:
            return run
        config = self.ledger(run).config
        return run if all(type_of(config, key) == type_of(self._config, key) for key in _KINDRED) else None

    def _changed(self, run: str) -> Sequence[str]:
        ledger = self.ledger(run)
        if ledger.changed is None:
            ledger.changed = settings_differences(_settings(ledger.config), _settings(self._config))
        return ledger.changed


@dataclass
class ReadLedger:
    """A run's configuration and what it has recorded."""

    config: Mapping[str, Any]
    entries: Sequence[LedgerEntry]
    changed: Sequence[str] | None = None

    @cached_property
    def places(self) -> Mapping[StageKey, str]:
        """The artifact at each place."""
        return recorded_ids(self.entries)

    @cached_property
    def computed(self) -> Mapping[StageKey, LedgerEntry]:
        """The ledger entry at each place whose artifact the run has computed itself."""
        return {place_of(entry): entry for entry in self.entries if not entry.reused}

    @cached_property
    def newest(self) -> Mapping[str, Sequence[str]]:
        """Stage -> its newest artifacts, the newest first."""
        ids: dict[str, list[str]] = {}
        for entry in reversed(self.entries):
            ids.setdefault(entry.stage, []).append(entry.artifact_id)
        return {stage: list(dict.fromkeys(each))[:MEASURED] for stage, each in ids.items()}


def _read_ledger(runs: RunStore, name: str) -> ReadLedger:
    # The commands about a run report it if it cannot be read.
    with suppress(StoreError):
        run = runs.open(name)
        return ReadLedger(run.config, run.recorded())
    return ReadLedger({}, ())


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in config.items() if key not in _NO_SETTINGS}


def _median_cost(manifests: Sequence[Manifest]) -> Cost:
    if not manifests:
        return Cost()
    generating = manifests[0].kind in _GENERATING
    return Cost(
        seconds=statistics.median((m.finished_at - m.started_at).total_seconds() for m in manifests),
        tokens=statistics.median(m.counters.get("generated_tokens", 0) for m in manifests)
        if generating
        else None,
        bytes=statistics.median(artifact_size(manifest).bytes for manifest in manifests),
    )


@dataclass(frozen=True)
class ArtifactSize:
    """Expected bytes of an artifact, and how many of them each retention rule may remove. `estimated`: they
    are computed from the model's size, because no artifact of the stage is known."""

    bytes: float
    retained: Mapping[Kept, float] = field(default_factory=dict)
    estimated: bool = False


def artifact_size(manifest: Manifest) -> ArtifactSize:
    """The size of an artifact when it was committed."""
    retained = {
        kind: float(sum(entry.bytes for entry in files_of(manifest, kind)))
        for kind in rules_about(manifest.kind)
    }
    return ArtifactSize(float(sum(entry.bytes for entry in manifest.files)), retained)
