"""The first tensor in which two safetensors files differ, read directly from the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from erl_pipeline.evaluation.divergence.difference import ContentDifference
from storage.errors import StoreError

_LENGTH = 8
"""How many bytes at the beginning of a file hold the length of its header."""
_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def first_tensor_difference(a: Path, b: Path, file: str) -> ContentDifference | None:
    """The first tensor, in the order of the file, whose bytes differ; None if all are the same."""
    (ours, left), (theirs, right) = _read(a), _read(b)
    if list(ours) != list(theirs):
        name = next(iter(ours.keys() ^ theirs.keys()), "")
        held = ["there" if name in header else "absent" for header in (ours, theirs)]
        return ContentDifference(file, "tensor", f"tensor {name}", held[0], held[1], tensor=name)
    for name, described in ours.items():
        other = theirs[name]
        if (described["dtype"], described["shape"]) != (other["dtype"], other["shape"]):
            shapes = [f"{each['dtype']} {each['shape']}" for each in (described, other)]
            return ContentDifference(file, "tensor", f"shape of {name}", shapes[0], shapes[1], tensor=name)
        x, y = (_bytes(data, each) for data, each in ((left, described), (right, other)))
        if not np.array_equal(x, y):
            return _of_tensor(file, name, described, x, y)
    return None


def _of_tensor(
    file: str, name: str, described: dict[str, Any], x: npt.NDArray[np.uint8], y: npt.NDArray[np.uint8]
) -> ContentDifference:
    kind = described["dtype"]
    if kind not in _FLOATS:
        return ContentDifference(file, "tensor", f"tensor {name} ({kind})", tensor=name)
    ours, theirs = _numbers(x, kind), _numbers(y, kind)
    differing = np.flatnonzero(ours != theirs)
    first = int(differing[0]) if len(differing) else 0
    position = tuple(int(at) for at in np.unravel_index(first, described["shape"] or [1]))
    return ContentDifference(
        file,
        "tensor",
        f"tensor {name}",
        f"{ours[first]:.9g}",
        f"{theirs[first]:.9g}",
        tensor=name,
        position=position,
        count=len(differing),
        largest=float(np.max(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)))),
    )


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], npt.NDArray[np.uint8]]:
    """The header entries of a file's tensors by name, in the order of their bytes; and all these bytes."""
    whole = np.memmap(path, dtype=np.uint8, mode="r")
    try:
        length = int.from_bytes(whole[:_LENGTH].tobytes(), "little")
        header = json.loads(whole[_LENGTH : _LENGTH + length].tobytes())
    except ValueError as error:
        raise StoreError(f"{path} is not a safetensors file: {error}") from error
    header.pop("__metadata__", None)
    tensors = dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"][0]))
    return tensors, whole[_LENGTH + length :]


def _bytes(data: npt.NDArray[np.uint8], described: dict[str, Any]) -> npt.NDArray[np.uint8]:
    start, end = described["data_offsets"]
    return data[start:end]


def _numbers(data: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
    numbers = np.frombuffer(data.tobytes(), dtype=_FLOATS[kind])
    if kind == "BF16":
        # A bfloat16 is the upper half of a float32.
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers
