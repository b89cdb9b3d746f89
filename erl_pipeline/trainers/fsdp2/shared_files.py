"""Files of whole tensors that all ranks write at once, put together from the rows of each."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, own_rows
from erl_pipeline.trainers.local.state_file import TYPES, file_header
from storage.artifacts.late_files import LateFiles


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


@dataclass(frozen=True)
class SharedFiles:
    """Files of tensors, with the same bytes that safetensors' own `save_file` would write.

    Each of `ranks.writers` ranks writes every so many-th file. As many files are put together at a time, one
    tensor of each: first each writer is given the rows of its tensor, then it has a part of its file.

    `files`: name of each file, and names of its tensors. `notes`: what each file says besides, as
    safetensors' `metadata`.
    """

    files: Mapping[str, Sequence[str]]
    tensors: Mapping[str, SharedTensor]
    notes: Mapping[str, str] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each file, in bytes."""
        return {
            file: len(self._header(in_file_order(self._of(names))))
            + sum(self.tensors[name].bytes for name in names)
            for file, names in self.files.items()
        }

    def write(self, folder: Path, ranks: ProcessRanks) -> None:
        """Write the files into a folder; all ranks call this. No rank has more than one whole tensor."""
        if ranks.rank < ranks.writers:
            folder.mkdir(parents=True, exist_ok=True)
        for name, parts in self._own(ranks):
            with nullcontext() if name is None else (folder / name).open("wb") as file:
                for part in parts:
                    if file is not None:
                        file.write(part)
                    del part  # before the next is put together

    def begin(self, folder: Path, ranks: ProcessRanks, late_files: LateFiles) -> None:
        """Begin to write the files; all ranks call this. Each writer has its files in host memory until they
        are written, so what the tensors hold may change at once."""
        late_files.wait()  # A rank has the files of one checkpoint at most.
        found = {name: list(parts) for name, parts in self._own(ranks)}
        late_files.begin({folder / name: parts for name, parts in found.items() if name is not None})

    def _own(self, ranks: ProcessRanks) -> Iterator[tuple[str | None, Iterator[memoryview]]]:
        """The files of this rank, each with its parts. A rank has to take the parts also where others have a
        file and it has none, and the name is None: the others wait for its rows."""
        listed = list(self.files.items())
        for first in range(0, len(listed), ranks.writers):
            at_once = listed[first : first + ranks.writers]
            in_order = [in_file_order(self._of(names)) for _, names in at_once]
            own = at_once[ranks.rank][0] if ranks.rank < len(at_once) else None
            yield own, self._parts(in_order, ranks)

    def _parts(self, in_order: Sequence[Sequence[str]], ranks: ProcessRanks) -> Iterator[memoryview]:
        if ranks.rank < len(in_order):
            yield memoryview(self._header(in_order[ranks.rank]))
        for names in zip_longest(*in_order):
            given = [
                _gathered(self.tensors[name], writer, ranks)
                for writer, name in enumerate(names)
                if name is not None
            ]
            # Moved to host memory only now, when all have their rows: so all writers do it at once.
            for whole in given:
                if whole is not None:
                    yield whole.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            del given, whole  # before the next are put together

    def _header(self, in_order: Sequence[str]) -> bytes:
        return header({name: self.tensors[name] for name in in_order}, self.notes)

    def _of(self, names: Iterable[str]) -> dict[str, SharedTensor]:
        return {name: self.tensors[name] for name in names}


def in_file_order(tensors: Mapping[str, SharedTensor]) -> list[str]:
    """Names of tensors in the order in which safetensors writes them."""
    order = list(TYPES)
    return sorted(tensors, key=lambda name: (-order.index(tensors[name].rows.dtype), name))


def header(tensors: Mapping[str, SharedTensor], notes: Mapping[str, str] | None = None) -> bytes:
    """What stands in a safetensors file before the tensors, which follow in this order."""
    return file_header({name: (tensor.rows.dtype, tensor.shape) for name, tensor in tensors.items()}, notes)


def _gathered(tensor: SharedTensor, writer: int, ranks: ProcessRanks) -> torch.Tensor | None:
    """A copy of the whole tensor on the rank that writes it; None on the others."""
    if tensor.spread:
        return ranks.gather(tensor.rows, tensor.shape, writer)
    return tensor.rows.to("cpu", copy=True) if ranks.rank == writer else None
