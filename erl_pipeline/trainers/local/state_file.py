"""The file with the state of an optimizer: the bytes that safetensors' own `save_file` would write, given
piece by piece."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_ALIGNMENT = 8
_FLOAT_BYTES = 4


def file_header(shapes: Mapping[str, Sequence[int]]) -> bytes:
    """What precedes fp32 tensors with these shapes, which follow in the order of their names."""
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(shapes):
        begin, end = end, end + _FLOAT_BYTES * torch.Size(shapes[name]).numel()
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def file_size(tensors: Mapping[str, torch.Tensor]) -> int:
    """Number of bytes of a file with these tensors."""
    return len(_header_of(tensors)) + _FLOAT_BYTES * sum(tensor.numel() for tensor in tensors.values())


def file_parts(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of the file. Those of tensors in host memory are not copied."""
    yield memoryview(_header_of(tensors))
    for name in sorted(tensors):
        yield tensors[name].detach().contiguous().cpu().reshape(-1).numpy().data.cast("B")


def _header_of(tensors: Mapping[str, torch.Tensor]) -> bytes:
    if other := [name for name, tensor in tensors.items() if tensor.dtype != torch.float32]:
        raise ValueError(f"{other[0]} is not fp32")
    return file_header({name: tensor.shape for name, tensor in tensors.items()})
