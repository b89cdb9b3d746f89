"""Retention: old artifacts lose their big files by a given rule; manifests, ids and lineage stay."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from storage.artifacts.artifact import present_files
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import RunBusy
from storage.filesystem import open_root
from storage.lineage.graph import current_entries
from storage.runs.ledger import LedgerEntry
from storage.runs.locks import lock_collection, run_mark
from storage.runs.run import Run, RunStore
from storage.serving.aliases import aliased_checkpoints
from storage.upkeep.offered import committed_with_state, files_of, offered_by
from storage.upkeep.rules import Kept, RetentionRule
from storage.upkeep.runs import begun_with, list_whole_runs
from storage.upkeep.sizes import freed_bytes, local_file


@dataclass(frozen=True)
class PlannedPruning:
    """Files of one artifact to be pruned, and by what rule."""

    manifest: Manifest
    kind: Kept
    files: tuple[str, ...]
    bytes: int
    """Freed once all that was planned with it is pruned. Bytes that several artifacts share count once, and
    not at all while another artifact has them."""
    reason: str


def plan_retention(
    store_uri: str,
    rules: Mapping[Kept, RetentionRule],
    run_name: str | None = None,
    needed_by: Callable[[str], Collection[str]] = lambda _: (),
) -> list[PlannedPruning]:
    """What the rules would prune; changes nothing.

    A file is pruned only if no run keeps it: a shared artifact stays as long as one run keeps it. A
    checkpoint that an alias means, or meant before, stays whole, and so do trajectories that were imported or
    collected.

    Args:
        run_name: the only run whose artifacts may lose files; None for all runs of the store.
        needed_by: gives, for the name of a run, the ids of artifacts that it still has to read. It is called
            only where something would be pruned, and for runs whose artifacts may lose files.

    Raises InputError for an unknown run, StoreError as `list_whole_runs` does.
    """
    runs, store = RunStore(store_uri), ArtifactStore(store_uri)
    if run_name is not None:
        runs.open(run_name)
    stages = {name: current_entries(store, runs.open(name).recorded()) for name in list_whole_runs(store_uri)}
    named = {name: {entry.artifact_id for entry in runs.open(name).stages()} for name in stages}
    begun_from = {each for name in stages for each in begun_with(store_uri, name)}
    served = aliased_checkpoints(store_uri)
    has_state = cache(partial(committed_with_state, store))
    found: dict[Kept, set[str]] = {}
    for kind, rule in rules.items():
        offered: set[str] = set()
        kept = begun_from | served
        for name, entries in stages.items():
            of_run = offered_by(entries, kind, rule, has_state)
            if run_name in (None, name):
                offered |= of_run
            kept |= named[name] - (of_run if run_name in (None, name) else set())
        found[kind] = offered - kept
    needed: set[str] = set()
    if any(found.values()):
        needed = {each for name in stages if run_name in (None, name) for each in needed_by(name)}
    planned = [
        pruning
        for kind, ids in found.items()
        for artifact_id in sorted(ids - needed)
        for pruning in _pruning_of(store, artifact_id, kind, rules[kind])
    ]
    return _with_freed_bytes(store, planned)


def retain(
    store_uri: str,
    rules: Mapping[Kept, RetentionRule],
    run_name: str | None = None,
    needed_by: Callable[[str], Collection[str]] = lambda _: (),
) -> list[PlannedPruning]:
    """Prune what `plan_retention` finds; returns what was pruned.

    Raises RunBusy when a run of the store is being worked on, or another machine has taken over, and what
    `plan_retention` raises.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    with lock_collection(root, RunStore(store_uri).list) as require_lock:
        planned = plan_retention(store_uri, rules, run_name, needed_by)
        for pruning in planned:
            require_lock()
            store.prune(pruning.manifest.artifact_id, pruning.files, pruning.reason)
    return planned


def retain_chain(
    store: ArtifactStore, chain: Sequence[Run], rules: Mapping[Kept, RetentionRule]
) -> list[PlannedPruning]:
    """Prune across finished runs each of which went on from a checkpoint of one before, such as the nights of
    a served run: each counts as one iteration. Returns what was pruned.

    What another run names, or an alias means or meant before, stays whole. A run on which a process works is
    left for the next time.
    """
    entries = [
        entry.model_copy(update={"iteration": number})
        for number, run in enumerate(chain, 1)
        for entry in run.stages()
        if entry.iteration
    ]
    own = {run.name for run in chain}
    kept = _KeptByOthers(store.uri, own)
    has_state = cache(partial(committed_with_state, store))
    offered = {kind: offered_by(entries, kind, rule, has_state) - kept.ids() for kind, rule in rules.items()}
    done = []
    for run in chain:
        made = {entry.artifact_id for entry in run.stages()}
        found = [
            pruning
            for kind, ids in offered.items()
            for artifact_id in sorted(ids & made)
            for pruning in _pruning_of(store, artifact_id, kind, rules[kind])
        ]
        if not found:
            continue
        with suppress(RunBusy), run.lock():
            for pruning in _with_freed_bytes(store, found):
                if pruning.manifest.artifact_id in kept.ids():
                    continue
                store.prune(pruning.manifest.artifact_id, pruning.files, pruning.reason)
                done.append(pruning)
    return done


@dataclass
class _KeptByOthers:
    """What other runs than `own` name, and what aliases mean or meant before. Pruning takes a while, in which
    others go on: it is asked for before each artifact, and reads only ledgers that have changed."""

    store_uri: str
    own: Collection[str]
    _named: dict[str, tuple[tuple[int, ...] | None, set[str]]] = field(default_factory=dict)

    def ids(self) -> set[str]:
        """The ids, as of now. Raises StoreError as `list_whole_runs` does."""
        root, runs = open_root(self.store_uri), RunStore(self.store_uri)
        kept = aliased_checkpoints(self.store_uri)
        for name in list_whole_runs(self.store_uri):
            if name in self.own:
                continue
            mark = run_mark(root, name)
            if mark is None or name not in self._named or self._named[name][0] != mark:
                self._named[name] = mark, {entry.artifact_id for entry in runs.open(name).recorded()}
            kept |= self._named[name][1] | begun_with(self.store_uri, name)
        return kept


@dataclass
class RunRetention:
    """Prunes old files of one run while its lock is held, also between the stages of its driver.

    Only artifacts that no other run's ledger names lose files: a running run has everything that it reads in
    its own ledger. So no other run needs to be locked.
    """

    store: ArtifactStore
    run: Run
    rules: Mapping[Kept, RetentionRule]
    _settled: set[tuple[Kept, str]] = field(default_factory=set)
    """Artifacts that have nothing left to lose."""
    _states: dict[str, bool] = field(default_factory=dict)
    """Whether a checkpoint, by its id, has the state of its optimizer."""

    def apply(self, entries: Sequence[LedgerEntry], needed: Collection[str]) -> list[PlannedPruning]:
        """Prune what the rules no longer keep; returns what was pruned.

        Args:
            entries: the entries of the run's ledger that count: of each (iteration, stage, key) at most one.
            needed: ids of artifacts that later artifacts are still to be made from; they stay whole.

        Raises RunBusy when another machine has taken over the run, StoreError as `list_whole_runs` does.
        """
        offered = [
            (kind, artifact_id)
            for kind, rule in self.rules.items()
            for artifact_id in sorted(offered_by(entries, kind, rule, self._has_state))
            if (kind, artifact_id) not in self._settled and artifact_id not in needed
        ]
        if not offered:
            return []
        kept = _KeptByOthers(self.store.uri, {self.run.name})
        done = []
        for kind, artifact_id in offered:
            self.run.require_lock()
            if artifact_id in kept.ids():
                continue
            found = _pruning_of(self.store, artifact_id, kind, self.rules[kind])
            for pruning in _with_freed_bytes(self.store, found):
                self.store.prune(artifact_id, pruning.files, pruning.reason)
                done.append(pruning)
            self._settled.add((kind, artifact_id))
        return done

    def came_back(self, artifact_id: str) -> None:
        """Count an artifact, which was made again, as having files to lose."""
        self._settled = {each for each in self._settled if each[1] != artifact_id}
        self._states.pop(artifact_id, None)

    def _has_state(self, artifact_id: str) -> bool:
        if artifact_id not in self._states:
            self._states[artifact_id] = committed_with_state(self.store, artifact_id)
        return self._states[artifact_id]


def _pruning_of(
    store: ArtifactStore, artifact_id: str, kind: Kept, rule: RetentionRule
) -> Sequence[PlannedPruning]:
    manifest = store.find(artifact_id)
    if manifest is None or (kind == "trajectories" and not manifest.inputs):
        return []  # What was made of nothing came from elsewhere: no stage could make it again.
    there = present_files(manifest, store.pruned(manifest))
    present = [
        entry for entry in files_of(manifest, kind) if entry in there or store.has_file(manifest, entry.path)
    ]
    if not present:
        return []
    return [
        PlannedPruning(
            manifest=manifest,
            kind=kind,
            files=tuple(entry.path for entry in present),
            bytes=sum(entry.bytes for entry in present),
            reason=rule.reason(kind),
        )
    ]


def _with_freed_bytes(store: ArtifactStore, planned: Sequence[PlannedPruning]) -> list[PlannedPruning]:
    """Each with the bytes on disk that it frees, where files may be hard links to the same bytes."""
    if not store.local:
        return list(planned)
    artifacts = Path(open_root(store.uri).join("artifacts"))
    paths = [
        [artifacts / pruning.manifest.stage / pruning.manifest.artifact_id / name for name in pruning.files]
        for pruning in planned
    ]
    freed = freed_bytes(
        {place: [local_file(path) for path in each if path.exists()] for place, each in enumerate(paths)}
    )
    return [replace(pruning, bytes=freed[place]) for place, pruning in enumerate(planned)]
