"""The file with the state of an optimizer: the bytes that safetensors' own `save_file` would write, given
piece by piece."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_ALIGNMENT = 8
TYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
"""What safetensors calls them. Its files begin with the tensors of the last."""


@dataclass(frozen=True)
class StateFile:
    """The state of an optimizer as a file: its size in bytes, and its parts in their order. These show what
    the optimizer holds when they are read: it must not take a step before."""

    size: int
    parts: Iterable[memoryview]


def file_header(
    tensors: Mapping[str, tuple[torch.dtype, torch.Size]], notes: Mapping[str, str] | None = None
) -> bytes:
    """What stands in a safetensors file before tensors of these types and shapes, which follow in this
    order."""
    described: dict[str, Any] = {} if notes is None else {"__metadata__": dict(notes)}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + dtype.itemsize * shape.numel()
        described[name] = {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def file_size(tensors: Mapping[str, torch.Tensor]) -> int:
    """Number of bytes of a file with these tensors."""
    return len(_header_of(tensors)) + sum(tensor.nbytes for tensor in tensors.values())


def file_parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of a file with fp32 tensors, in the order of their names. Those of tensors in host memory are
    not copied."""
    yield memoryview(_header_of(tensors))
    for name in sorted(tensors):
        yield tensors[name].detach().contiguous().cpu().reshape(-1).numpy().data.cast("B")


def _header_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    if other := [name for name, tensor in tensors.items() if tensor.dtype != torch.float32]:
        raise ValueError(f"{other[0]} is not fp32")
    return file_header({name: (tensors[name].dtype, tensors[name].shape) for name in sorted(tensors)})
