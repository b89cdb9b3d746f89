"""Retention: old artifacts lose their big files by a stated rule; manifests, ids and lineage stay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from storage.artifacts.manifest import Manifest
from storage.artifacts.pruned import present_files
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.filesystem import open_root
from storage.runs.locks import lock_collection
from storage.runs.run import Run, RunStore

Kept = Literal["checkpoints", "optimizer", "trajectories"]
"""What a rule is about: weights, optimizer states, or the rows of rollouts."""

_RULE = re.compile(r"(\d{1,9})|(\d{1,9}),every:(\d{1,9})|every:(\d{1,9})")
_FILES: Mapping[Kept, tuple[ArtifactKind, str]] = {
    "checkpoints": ("checkpoint", "model/*.safetensors"),
    "optimizer": ("checkpoint", "optimizer.safetensors"),
    "trajectories": ("trajectories", "*.parquet"),
}
"""The kind of artifact, and its files by name."""


@dataclass(frozen=True)
class RetentionRule:
    """Which iterations keep their files: the `last` few, and those that `every` divides."""

    text: str
    last: int
    every: int | None = None

    def kept(self, iterations: Iterable[int]) -> set[int]:
        """Those of a run's iterations that keep their files; the last one always does."""
        ordered = sorted(set(iterations))
        kept = set(ordered[-self.last :])
        return kept | {number for number in ordered if self.every and number % self.every == 0}


def parse_rule(text: str) -> RetentionRule:
    """`N`, `every:K` or `N,every:K`. Raises InputError for anything else."""
    found = _RULE.fullmatch(text.strip())
    numbers = [int(number) if number else None for number in found.groups()] if found else [0]
    if 0 in numbers:
        raise InputError(
            f"{text!r} is no rule of retention: give a number of last iterations to keep, at least 1, "
            "or every:K, or both as in 3,every:10."
        )
    last, both, every, every_alone = numbers
    return RetentionRule(text.strip(), last or both or 1, every or every_alone)


@dataclass(frozen=True)
class PlannedPruning:
    """Files of one artifact to be pruned, and by what rule."""

    manifest: Manifest
    kind: Kept
    files: tuple[str, ...]
    bytes: int
    reason: str


def plan_retention(
    store_uri: str, rules: Mapping[Kept, RetentionRule], run_name: str | None = None
) -> list[PlannedPruning]:
    """What the rules would prune; changes nothing.

    A file goes only where no run keeps it: an artifact that runs share stays as long as one of them needs it.

    Args:
        run_name: the only run whose artifacts may lose files; None for all runs of the store.

    Raises InputError for an unknown run.
    """
    runs, store = RunStore(store_uri), ArtifactStore(store_uri)
    if run_name is not None:
        runs.open(run_name)
    opened = [runs.open(name) for name in runs.list()]
    planned: list[PlannedPruning] = []
    for kind, rule in rules.items():
        artifact_kind, pattern = _FILES[kind]
        offered: set[str] = set()
        kept: set[str] = set()
        for run in opened:
            made = _by_iteration(run, artifact_kind)
            # What a run began with is never pruned: adapters need it.
            kept.update(made.pop(0, []))
            last = rule.kept(made) if run_name in (None, run.name) else set(made)
            for iteration, artifact_ids in made.items():
                (kept if iteration in last else offered).update(artifact_ids)
        for artifact_id in sorted(offered - kept):
            planned += _pruning_of(store, artifact_id, kind, pattern, rule)
    return planned


def retain(
    store_uri: str, rules: Mapping[Kept, RetentionRule], run_name: str | None = None
) -> list[PlannedPruning]:
    """Prune what `plan_retention` finds; gives what was pruned.

    Raises RunBusy when a run of the store is being worked on.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    with lock_collection(root, RunStore(store_uri).list()):
        planned = plan_retention(store_uri, rules, run_name)
        for pruning in planned:
            store.prune(pruning.manifest.artifact_id, pruning.files, pruning.reason)
    return planned


def _by_iteration(run: Run, kind: ArtifactKind) -> dict[int, list[str]]:
    """Iteration -> ids of the run's artifacts of a kind; 0 for those from before the first."""
    found: dict[int, list[str]] = {}
    for entry in run.stages():
        if entry.kind == kind:
            found.setdefault(entry.iteration or 0, []).append(entry.artifact_id)
    return found


def _pruning_of(
    store: ArtifactStore, artifact_id: str, kind: Kept, pattern: str, rule: RetentionRule
) -> Sequence[PlannedPruning]:
    manifest = store.find(artifact_id)
    if manifest is None:
        return []
    present = [
        entry
        for entry in present_files(manifest, store.pruned(manifest))
        if fnmatchcase(entry.path, pattern) and entry in manifest.files
    ]
    if not present:
        return []
    return [
        PlannedPruning(
            manifest=manifest,
            kind=kind,
            files=tuple(entry.path for entry in present),
            bytes=sum(entry.bytes for entry in present),
            reason=f"the rule --retain-{kind} {rule.text}",
        )
    ]
