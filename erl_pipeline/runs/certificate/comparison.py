"""Comparing a copy of a run with the run: which artifacts are lost, computed twice, or different."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from erl_pipeline.plan.plan import Place, PlannedStage
from erl_pipeline.runs.audit import manifest_differences
from erl_pipeline.runs.certificate.subject import Subject
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run


@dataclass
class Comparison:
    """What was compared, and a line for each case; see `Certificate`."""

    artifacts: int = 0
    files: int = 0
    bytes: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    not_promised: list[str] = field(default_factory=list)

    def add(self, other: Comparison, prefix: str) -> None:
        """Add another comparison; `prefix` is put before its lines to tell them apart."""
        self.artifacts += other.artifacts
        self.files += other.files
        self.bytes += other.bytes
        for lines, more in (
            (self.lost, other.lost),
            (self.doubled, other.doubled),
            (self.different, other.different),
            (self.not_promised, other.not_promised),
        ):
            lines += [f"{prefix}{line}" for line in more]


def compare_copy(subject: Subject, copy_uri: str) -> Comparison:
    """Compare all that a run has with what its copy in another store has.

    Every file of both is hashed, except files that retention has removed: their manifests hold their hashes.
    """
    copy = ArtifactStore(copy_uri)
    copied_run = RunStore(copy_uri).open(subject.run.name)
    recorded = copied_run.recorded()
    found = Comparison()
    latest = {Place(entry.iteration or 0, entry.stage, entry.key): entry.artifact_id for entry in recorded}
    computed = Counter(
        Place(entry.iteration or 0, entry.stage, entry.key) for entry in recorded if not entry.reused
    )
    planned = subject.plan.by_place
    found.doubled += [
        f"{planned[place].title if place in planned else place.stage} was computed {times} times"
        for place, times in computed.items()
        if times > 1
    ]
    ids = {node.artifact_id for node in subject.plan.nodes}
    found.doubled += [
        f"artifact {manifest.artifact_id} ({manifest.stage}) is not part of the plan"
        for manifest in copy.list()
        if manifest.artifact_id not in ids
    ]
    found.different += [f"copy: {problem}" for problem in verify_run(copy, copied_run).problems]
    loose: set[str] = set()
    for node in subject.expected:
        if latest.get(node.place) != node.artifact_id:
            found.lost.append(f"{node.title} ({node.artifact_id}) is not in the copy's ledger")
            continue
        made = copy.find(node.artifact_id, node.stage.name)
        if made is None:
            found.lost.append(f"{node.title} ({node.artifact_id}) is not in the copy's store")
            continue
        _compare(subject.store, node, made, found, loose)
    return found


def _compare(
    stored: ArtifactStore, node: PlannedStage, made: Manifest, found: Comparison, loose: set[str]
) -> None:
    """Compare one artifact. `loose` are the artifacts whose bytes are not promised, or that were made from
    such an artifact; this one is added if it is one of them."""
    try:
        manifest = stored.open(node.artifact_id).manifest
    except DamagedArtifact as damage:
        found.different.append(f"{node.title}: {damage}")
        return
    found.artifacts += 1
    found.files += len(manifest.files)
    found.bytes += sum(entry.bytes for entry in manifest.files)
    if manifest.determinism != "bytes" or loose.intersection(node.recipe.inputs.values()):
        loose.add(node.artifact_id)
    lines = [f"{node.title} ({node.artifact_id}): {line}" for line in manifest_differences(manifest, made)]
    (found.not_promised if node.artifact_id in loose else found.different).extend(lines)
