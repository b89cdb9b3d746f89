"""Files of whole tensors that all ranks write at once, put together from the rows of each."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, own_rows
from erl_pipeline.trainers.local.state_file import TYPES, file_header


@dataclass(frozen=True)
class SharedTensor:
    """A tensor as one rank has it: `rows` are its own rows of a tensor of this shape, or all of it where it
    is not `spread` over the ranks."""

    rows: torch.Tensor
    shape: torch.Size
    spread: bool

    @property
    def bytes(self) -> int:
        """The size of the whole tensor."""
        return self.shape.numel() * self.rows.element_size()


def shared_weight(weight: torch.Tensor) -> SharedTensor:
    """A weight or buffer of a sharded model."""
    if isinstance(weight, DTensor):
        return SharedTensor(own_rows(weight), weight.shape, True)
    return SharedTensor(weight.detach(), weight.shape, False)


def shared_rows(tensors: Mapping[str, torch.Tensor], ranks: ProcessRanks) -> dict[str, SharedTensor]:
    """Tensors of which each rank has given its rows. Those without dimensions are the same on all ranks."""
    rows = {name: len(tensor) for name, tensor in tensors.items() if tensor.ndim}
    counts = [json.loads(text) for text in ranks.exchange(json.dumps(rows))]
    found = {name: SharedTensor(tensor.detach(), tensor.shape, False) for name, tensor in tensors.items()}
    for name in rows:
        shape = torch.Size([sum(each[name] for each in counts), *found[name].shape[1:]])
        found[name] = SharedTensor(found[name].rows, shape, True)
    return found


def write_files(
    folder: Path,
    files: Mapping[str, Sequence[str]],
    tensors: Mapping[str, SharedTensor],
    ranks: ProcessRanks,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write files of tensors, as the same bytes that safetensors' own `save_file` would write. All ranks call
    this.

    Each of `ranks.writers` ranks writes every so many-th file. As many files are written at a time, one
    tensor of each: first each writer is given the rows of its tensor, then all write. So no rank has more
    than one whole tensor.

    Args:
        files: name of each file, and names of its tensors.
        notes: what each file says besides, as safetensors' `metadata`.
    """
    if ranks.rank < ranks.writers:
        folder.mkdir(parents=True, exist_ok=True)
    listed = list(files.items())
    for first in range(0, len(listed), ranks.writers):
        at_once = listed[first : first + ranks.writers]
        in_order = [in_file_order({name: tensors[name] for name in names}) for _, names in at_once]
        own = at_once[ranks.rank][0] if ranks.rank < len(at_once) else None
        with nullcontext() if own is None else (folder / own).open("wb") as file:
            if file is not None:
                file.write(header({name: tensors[name] for name in in_order[ranks.rank]}, notes))
            for names in zip_longest(*in_order):
                given = [
                    _gathered(tensors[name], writer, ranks)
                    for writer, name in enumerate(names)
                    if name is not None
                ]
                for whole in given:
                    if file is not None and whole is not None:
                        file.write(whole.contiguous().view(-1).view(torch.uint8).numpy().data)
                del given, whole  # before the next are put together


def in_file_order(tensors: Mapping[str, SharedTensor]) -> list[str]:
    """Names of tensors in the order in which safetensors writes them."""
    order = list(TYPES)
    return sorted(tensors, key=lambda name: (-order.index(tensors[name].rows.dtype), name))


def header(tensors: Mapping[str, SharedTensor], notes: Mapping[str, str] | None = None) -> bytes:
    """What stands in a safetensors file before the tensors, which follow in this order."""
    return file_header({name: (tensor.rows.dtype, tensor.shape) for name, tensor in tensors.items()}, notes)


def _gathered(tensor: SharedTensor, writer: int, ranks: ProcessRanks) -> torch.Tensor | None:
    """The whole tensor in host memory, on the rank that writes it; None on the others."""
    if tensor.spread:
        return ranks.gather(tensor.rows, tensor.shape, writer)
    return tensor.rows.cpu() if ranks.rank == writer else None
