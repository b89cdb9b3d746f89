"""Where two runs first differ: in an artifact, a table, or the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import polars as pl

from erl_pipeline.evaluation.history import StageRecord, stage_order
from erl_pipeline.evaluation.iterations import common_order
from erl_pipeline.plan.forecast import recipe_differences
from erl_pipeline.plan.plan import StageKey
from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ContentDifference:
    """The first difference between a file of one artifact and the same file of another.

    `row` is the number of the row, from 0; `place` has the columns by which people recognise it; `token` is a
    position in a list. In a tensor, `position` is the index of the first element that differs, `count` the
    number of elements whose bytes differ, and `largest` the largest difference, None where one is not a
    number. `a` and `b` are the two values, as text.
    """

    file: str
    kind: Literal["file", "row", "tensor"]
    what: str
    """What differs, in words, such as `column reward`, `token 3 of response_token_ids`, `tensor
    lm_head.weight`."""
    a: str = ""
    b: str = ""
    row: int | None = None
    place: Mapping[str, Any] = field(default_factory=dict)
    column: str = ""
    token: int | None = None
    tensor: str = ""
    position: tuple[int, ...] = ()
    count: int | None = None
    largest: float | None = None


_DERIVED = ("seed", "tokenizer_digest", "embedding_model", "vector")
"""Columns that are derived from others or from the recipe alone, besides ids and versions."""
_PLACE = ("iteration", "task_id", "sample_index", "role", "revision_index", "entry_id", "kind")
_SHOWN = 120


def first_row_difference(a: Path, b: Path, file: str) -> ContentDifference | None:
    """The first difference between two files of one table, row by row; None if there is none.

    Derived columns do not count: ids, seeds, and versions of policy and memory follow from recipes, so they
    differ as soon as anything before them did.
    """
    ours, theirs = (pl.scan_parquet(path, glob=False) for path in (a, b))
    columns = [name for name in ours.collect_schema().names() if not _is_derived(name)]
    other = theirs.collect_schema().names()
    columns = [name for name in columns if name in other]
    left, right = (frame.select(columns).collect() for frame in (ours, theirs))
    rows = min(left.height, right.height)
    first, differing_column = rows, ""
    # One column after the other, so that only one comparison is in memory at a time.
    for name in columns:
        same = left[name].head(rows).eq_missing(right[name].head(rows))
        differing = (~same).arg_true()
        if len(differing) and differing[0] < first:
            first, differing_column = int(differing[0]), name
    if first < rows:
        here, there = left.row(first, named=True), right.row(first, named=True)
        return _of_row(here, there, differing_column, first, file)
    if left.height != right.height:
        longer = left if left.height > right.height else right
        place = {name: value for name, value in longer.row(first, named=True).items() if name in _PLACE}
        return ContentDifference(
            file,
            "row",
            "a row that the other lacks",
            f"{left.height} rows",
            f"{right.height} rows",
            row=first,
            place=place,
        )
    return None


def _of_row(
    ours: dict[str, Any], theirs: dict[str, Any], column: str, number: int, file: str
) -> ContentDifference:
    place = {name: value for name, value in ours.items() if name in _PLACE}
    left, right = ours[column], theirs[column]
    token = _token(left, right)
    if token is not None:
        left, right = (each[token] if token < len(each) else "the end" for each in (left, right))
    return ContentDifference(
        file,
        "row",
        f"column {column}" if token is None else f"token {token} of {column}",
        _shown(left),
        _shown(right),
        row=number,
        place=place,
        column=column,
        token=token,
    )


def _token(ours: Any, theirs: Any) -> int | None:
    """The first position at which two lists differ; None if one of the values is not a list."""
    if not (isinstance(ours, list) and isinstance(theirs, list)):
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next(
        (at for at, (x, y) in pairs if x != y and not (x != x and y != y)), min(len(ours), len(theirs))
    )


def _is_derived(name: str) -> bool:
    is_id = name.endswith(("_id", "_ids", "_version")) and not name.endswith("_token_ids")
    return name in _DERIVED or (is_id and name != "task_id")


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def first_tensor_difference(a: Path, b: Path, file: str) -> ContentDifference | None:
    """The first tensor, in the order of the file, whose bytes differ; None if all are the same."""
    from safetensors import SafetensorError, safe_open  # torch takes seconds to import

    for path in (a, b):
        try:
            safe_open(path, "pt")
        except SafetensorError as error:
            raise StoreError(f"{path} is not a safetensors file: {error}") from error
    with safe_open(a, "pt") as left, safe_open(b, "pt") as right:
        names, others = left.offset_keys(), right.offset_keys()
        if names != others:
            name = next(iter(dict.fromkeys(names).keys() ^ dict.fromkeys(others).keys()), "")
            held = ["there" if name in each else "absent" for each in (names, others)]
            return ContentDifference(file, "tensor", f"tensor {name}", held[0], held[1], tensor=name)
        for name in names:
            ours, theirs = left.get_slice(name), right.get_slice(name)
            kinds = [f"{each.get_dtype()} {each.get_shape()}" for each in (ours, theirs)]
            if kinds[0] != kinds[1]:
                return ContentDifference(file, "tensor", f"shape of {name}", kinds[0], kinds[1], tensor=name)
            found = _of_tensor(file, name, left.get_tensor(name), right.get_tensor(name))
            if found is not None:
                return found
    return None


def _of_tensor(file: str, name: str, ours: torch.Tensor, theirs: torch.Tensor) -> ContentDifference | None:
    import torch

    x, y = ours.flatten(), theirs.flatten()
    # By bytes: 0.0 and -0.0 differ, and NaN is the same as itself.
    left, right = (each.view(torch.uint8).reshape(len(each), each.element_size()) for each in (x, y))
    differing = (left != right).any(dim=1).nonzero().flatten()
    if not len(differing):
        return None
    first = int(differing[0])
    largest = float((x.double() - y.double()).abs().max())
    return ContentDifference(
        file,
        "tensor",
        f"tensor {name}",
        f"{x[first].item():.9g}",
        f"{y[first].item():.9g}",
        tensor=name,
        position=tuple(int(at) for at in np.unravel_index(first, ours.shape or (1,))),
        count=len(differing),
        largest=None if math.isnan(largest) else largest,
    )


@dataclass(frozen=True)
class Parting:
    """A place at which the runs have different artifacts, `a` and `b`; None for a run that has none there.

    `recipe` says how the recipes differ: settings, code, inputs, seed.
    """

    place: StageKey
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


def _by_place(history: Sequence[StageRecord]) -> Mapping[StageKey, Manifest]:
    return {
        StageKey(record.iteration, record.stage, record.key): record.manifest
        for record in history
        if not record.on_request
    }
