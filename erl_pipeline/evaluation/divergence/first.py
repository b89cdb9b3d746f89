"""The first place at which two runs have different artifacts, and the first at which the content differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.evaluation.divergence.difference import ContentDifference
from erl_pipeline.evaluation.divergence.tables import first_row_difference
from erl_pipeline.evaluation.divergence.tensors import first_tensor_difference
from erl_pipeline.evaluation.history import StageRecord, stage_order
from erl_pipeline.evaluation.run_difference import common_order
from erl_pipeline.plan.differences import recipe_differences
from erl_pipeline.plan.plan import Place
from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.store import ArtifactStore


@dataclass(frozen=True)
class Parting:
    """A place at which the runs have different artifacts, `a` and `b`; None for a run that has none there.

    `recipe` says how the recipes differ: settings, code, inputs, seed.
    """

    place: Place
    a: str | None
    b: str | None
    recipe: tuple[str, ...] = ()


@dataclass(frozen=True)
class Divergence:
    """Where two runs diverge.

    `shared` counts the places with the same artifact before `parting`, the first place with different
    artifacts. `alike` counts the places whose artifacts have different recipes but the same content. `at` is
    the first place whose content differs, and `content` is the difference. Both are None if there is no such
    place; only `content` is None if one run lacks the place.
    """

    shared: int
    parting: Parting | None
    alike: int
    at: Parting | None
    content: ContentDifference | None


def first_divergence(store: ArtifactStore, a: Sequence[StageRecord], b: Sequence[StageRecord]) -> Divergence:
    """Compare two runs place by place, in the order of their stages, until content differs.

    Ids, versions and seeds in rows do not count, because they are derived from recipes. Raises
    DamagedArtifact or PrunedFileError if a file that must be compared is damaged or was removed by retention.
    """
    ours, theirs = _by_place(a), _by_place(b)
    stages = {name: at for at, name in enumerate(common_order(stage_order(a), stage_order(b)))}
    places = sorted(
        ours.keys() | theirs.keys(), key=lambda each: (each.iteration, stages[each.stage], each.key)
    )
    shared = alike = 0
    first: Parting | None = None
    for place in places:
        left, right = ours.get(place), theirs.get(place)
        if left is None or right is None:
            ids = [None if each is None else each.artifact_id for each in (left, right)]
            lone = Parting(place, ids[0], ids[1])
            return Divergence(shared, first or lone, alike, lone, None)
        if left.artifact_id == right.artifact_id:
            shared += first is None
            continue
        here = Parting(
            place, left.artifact_id, right.artifact_id, tuple(recipe_differences(left.recipe, right.recipe))
        )
        first = first or here
        content = content_difference(store, left, right)
        if content is not None:
            return Divergence(shared, first, alike, here, content)
        alike += 1
    return Divergence(shared, first, alike, None, None)


def content_difference(store: ArtifactStore, a: Manifest, b: Manifest) -> ContentDifference | None:
    """The first difference between two artifacts' files, in the order of names; None if there is none."""
    ours, theirs = ({entry.path: entry for entry in manifest.files} for manifest in (a, b))
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs:
            held = ["there" if name in files else "absent" for files in (ours, theirs)]
            return ContentDifference(name, "file", f"file {name}", held[0], held[1])
        if ours[name].sha256 != theirs[name].sha256:
            found = _file_difference(store, a, b, ours[name])
            if found is not None:
                return found
    return None


def _file_difference(
    store: ArtifactStore, a: Manifest, b: Manifest, entry: FileEntry
) -> ContentDifference | None:
    name = entry.path
    left, right = store.open_file(a, name), store.open_file(b, name)
    if name.endswith(".parquet"):
        return first_row_difference(left, right, name)
    if name.endswith(".safetensors"):
        return first_tensor_difference(left, right, name)
    return ContentDifference(name, "file", f"bytes of {name}")


def _by_place(history: Sequence[StageRecord]) -> Mapping[Place, Manifest]:
    return {
        Place(record.iteration, record.stage, record.key): record.manifest
        for record in history
        if not record.on_request
    }
