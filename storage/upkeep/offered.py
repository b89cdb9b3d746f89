"""Which artifacts of a run the rules of retention are about, and which of them a rule offers to prune."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.runs.ledger import LedgerEntry
from storage.upkeep.rules import Kept, RetentionRule
from storage.upkeep.runs import undamaged

_FILES: Mapping[Kept, tuple[ArtifactKind, str]] = {
    "checkpoints": ("checkpoint", "model/*.safetensors"),
    "optimizer": ("checkpoint", "optimizer*.safetensors"),
    "trajectories": ("trajectories", "*.parquet"),
}
"""For each kind of rule: the kind of artifact it is about, and a pattern of file names."""


def offered_by(
    entries: Iterable[LedgerEntry], kind: Kept, rule: RetentionRule, has_state: Callable[[str], bool]
) -> set[str]:
    """Ids of the artifacts of a run that a rule does not keep. Artifacts from before the first iteration
    stay: adapters need the first checkpoint. The rollouts of a run that keeps experience also stay, since any
    of them may be replayed.

    Args:
        has_state: whether a checkpoint, by its id, was committed with the state of its optimizer. A rule
            about states counts only iterations that have one.
    """
    listed = list(entries)
    if kind == "optimizer":
        listed = [entry for entry in listed if entry.kind == _FILES[kind][0] and has_state(entry.artifact_id)]
    if kind == "trajectories" and any(entry.kind == "experience" for entry in listed):
        return set()
    made = iterations_of(listed, kind)
    begun_with = set(made.pop(0, []))
    last = rule.kept(made)
    kept = {artifact_id for iteration in last for artifact_id in made[iteration]}
    return {artifact_id for ids in made.values() for artifact_id in ids} - kept - begun_with


def committed_with_state(store: ArtifactStore, artifact_id: str) -> bool:
    """Whether a checkpoint was committed with the state of its optimizer; not so for one that is gone or
    damaged."""
    manifest = undamaged(store, artifact_id)
    return manifest is not None and bool(files_of(manifest, "optimizer"))


def iterations_of(entries: Iterable[LedgerEntry], kind: Kept) -> dict[int, list[str]]:
    """Iteration -> ids of the artifacts that a rule of this kind is about; 0: from before the first."""
    found: dict[int, list[str]] = {}
    for entry in entries:
        if entry.kind == _FILES[kind][0]:
            found.setdefault(entry.iteration or 0, []).append(entry.artifact_id)
    return found


def files_of(manifest: Manifest, kind: Kept) -> list[FileEntry]:
    """The files of an artifact that a rule of this kind is about, also those that were pruned before."""
    return [entry for entry in manifest.files if fnmatchcase(entry.path, _FILES[kind][1])]


def rules_about(kind: ArtifactKind) -> list[Kept]:
    """Kinds of rules that are about artifacts of a kind."""
    return [kept for kept, (about, _) in _FILES.items() if about == kind]
