"""What computing with fake tensors would take: memory by part, FLOPs, bytes that are moved, waits of the
host.

torch's `FakeTensorMode` gives every tensor a shape and a device but no memory. `Recorder` stands in front of
it and sees each operation. Fake tensors have no values, so it also answers whoever asks for one; each such
question would make the host wait for its device.
"""

from __future__ import annotations

import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from storage.errors import InputError

aten, c10d = torch.ops.aten, torch.ops.c10d

WEIGHTS, REFERENCE, GATHERED = "weights", "reference model", "gathered weights"
GRADIENTS, MASTERS, MOMENTS = "gradients", "fp32 weights", "moments of AdamW"
ACTIVATIONS, MASKS, LOGITS = "activations", "masks and indices", "logits"
PARTS = (WEIGHTS, REFERENCE, GATHERED, GRADIENTS, MASTERS, MOMENTS, ACTIVATIONS, MASKS, LOGITS)
"""Activations are all that has no other name, temporary results included."""

MAPPED = "files"
"""In `Recorder.held_on`: files that are mapped take no memory that the system could not have back."""

_BEFORE = "before"
_PACKAGE = str(Path(__file__).parents[1])
_OF_FILES = {
    "packing.py": MASKS,
    "optimizer.py": GRADIENTS,
    "learner.py": GRADIENTS,
}
"""What is made by a module of the trainers, unless an operation says more about it."""


@dataclass
class Costs:
    """What was computed and moved; `waits`: by line of code, how often the host read a value of a device."""

    flops: int = 0
    interconnect_bytes: int = 0
    """Sent by this rank, with ring algorithms."""
    to_device_bytes: int = 0
    to_host_bytes: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Costs:
        return self + Costs()

    def __add__(self, other: Costs) -> Costs:
        return Costs(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __sub__(self, other: Costs) -> Costs:
        return Costs(**{name: value - getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Peak:
    """The most memory that was in use at one moment, in bytes: where in the work, and by part."""

    phase: str
    bytes: int
    parts: Mapping[str, int]


class Recorder(TorchDispatchMode):
    """Records operations on fake tensors while it is entered, inside a `FakeTensorMode`.

    Values that are read are answered as follows: a number is 0 and a truth value false, two tensors are
    equal, all elements of a mask are true. A whole number that is read raises InputError, since it would
    decide a shape.

    Args:
        vocabulary: a tensor whose last dimension has this size holds logits, unless it is a weight.
    """

    def __init__(self, vocabulary: int, ranks: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs = Costs()
        self.phase = _BEFORE
        self._vocabulary, self._ranks = vocabulary, ranks
        self._events: list[tuple[int, int, str]] = []  # allocation, change in bytes, phase
        self._devices: list[str] = []
        self._parts: list[str] = []
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._sizes: dict[int, int] = {}
        self._functions = _ValuesRead(self)
        self.held_on: str | None = None
        """Where memory counts that is allocated now; None: on the device of the tensor."""

    def __enter__(self) -> Recorder:
        self._resize = torch.UntypedStorage.resize_
        resize, recorder = self._resize, self

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in recorder._alive:
                recorder._change(recorder._alive[storage._cdata][0], storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._functions.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def begin(self, phase: str) -> None:
        """Begin a phase, with nothing counted. How memory was used before the first is forgotten."""
        if self.phase == _BEFORE:
            alive = [number for number, _ in self._alive.values()]
            self._events = [(number, self._sizes[number], phase) for number in alive]
        self.phase, self.costs = phase, Costs()

    def name(self, tensors: Iterable[torch.Tensor | None], part: str) -> None:
        """Say what the memory of tensors is for; what was said first stays, except for what was guessed."""
        for tensor in tensors:
            if tensor is not None:
                known = self._parts[self._track(tensor)]
                if known in (ACTIVATIONS, LOGITS) or (known == GRADIENTS and part in (MASTERS, MOMENTS)):
                    self._parts[self._track(tensor)] = part

    def peaks(self) -> dict[str, Peak]:
        """The peak of each kind of device, `cpu` and the one that trains."""
        return {device: self._peak(device) for device in sorted(set(self._devices) - {"meta", MAPPED})}

    def _peak(self, device: str) -> Peak:
        total = most = place = 0
        for index, (number, change, _) in enumerate(self._events):
            if self._devices[number] == device:
                total += change
                if total > most:
                    most, place = total, index
        parts: Counter[str] = Counter()
        for number, change, _ in self._events[: place + 1]:
            if self._devices[number] == device:
                parts[self._parts[number]] += change
        return Peak(self._events[place][2], most, {part: parts[part] for part in PARTS if parts[part]})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args)
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # its own dispatch comes first, and calls operations on what it holds
        packet = func._overloadpacket
        answer = self._answer(packet, args)
        result = func(*args, **kwargs) if answer is None else answer[0]
        if packet in flop_registry:
            self.costs.flops += flop_registry[packet](*args, **kwargs, out_val=result)
        elif func.namespace == "torch_attn":
            self.costs.flops += _flash_flops(packet.__name__, args)
        for tensor in _tensors(result):
            self._track(tensor)
        self._name_by_operation(func, packet, args, kwargs, result)
        self._count_moves(func, packet, args, kwargs, result)
        return result

    def _answer(self, packet: Any, args: tuple[Any, ...]) -> tuple[Any] | None:
        """The result of an operation that depends on values; None for all others."""
        if packet is aten._local_scalar_dense:
            tensor = args[0]
            if tensor.dtype not in (torch.bool, torch.float32, torch.float64, torch.bfloat16):
                raise InputError(
                    f"{_line()} reads a whole number from a tensor, which may decide a shape: the update "
                    "cannot be measured without values"
                )
            self.wait(tensor)
            return (False if tensor.dtype == torch.bool else 0.0,)
        if packet is aten.equal:
            self.wait(args[0])
            return (True,)
        if packet is aten._fused_sdp_choice and args[0].device.type != "cpu":
            # As on a GPU: flash attention takes no mask.
            masked = len(args) > 3 and args[3] is not None
            choice = SDPBackend.EFFICIENT_ATTENTION if masked else SDPBackend.FLASH_ATTENTION
            return (choice.value,)
        if packet is aten.index and any(_is_mask(index) for index in args[1]):
            self.wait(args[0])
            values, (mask, *others) = args[0], args[1]
            assert _is_mask(mask)
            assert not any(other is not None for other in others)
            with self:
                return (values.reshape(-1, *values.shape[mask.ndim :]).clone(),)
        if packet is aten.nonzero:
            self.wait(args[0])
            return (args[0].new_empty((args[0].numel(), args[0].ndim), dtype=torch.long),)
        return None

    def wait(self, tensor: torch.Tensor) -> None:
        """Count that the host waits for a value of its device."""
        if tensor.device.type != "cpu":
            self.costs.waits[_line()] += 1

    def _track(self, tensor: torch.Tensor) -> int:
        """The number of the allocation that a tensor uses."""
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return self._alive[key][0]
        number = len(self._parts)
        self._devices.append(self.held_on or tensor.device.type)
        self._parts.append(self._guess(tensor))
        self._sizes[number] = 0
        self._alive[key] = number, weakref.ref(storage, lambda _: self._freed(key))
        self._change(number, storage.nbytes())
        return number

    def _guess(self, tensor: torch.Tensor) -> str:
        frame: Any = sys._getframe(2)
        while frame is not None:
            file: str = frame.f_code.co_filename
            if file.startswith(_PACKAGE) and "/trainers/" in file:
                part = _OF_FILES.get(file.rpartition("/")[2])
                if part is not None:
                    return part
            frame = frame.f_back
        if tensor.ndim > 1 and tensor.shape[-1] == self._vocabulary:
            return LOGITS
        return ACTIVATIONS

    def _change(self, number: int, size: int) -> None:
        self._events.append((number, size - self._sizes[number], self.phase))
        self._sizes[number] = size

    def _freed(self, key: int) -> None:
        number, _ = self._alive.pop(key)
        self._change(number, 0)

    def _name_by_operation(
        self, func: Any, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if packet is aten._fused_adamw_:
            for tensors, part in zip(args[:4], (MASTERS, GRADIENTS, MOMENTS, MOMENTS), strict=True):
                self.name(tensors, part)
        elif func.namespace == "fsdp" and packet.__name__ == "chunk_cat":
            self.name([*args[0], kwargs["out"]], GRADIENTS)
        elif func.namespace == "fsdp" and packet.__name__ == "split_with_sizes_copy":
            self.name([args[0], *kwargs["out"]], GATHERED)
        elif packet is c10d._reduce_scatter_base_:
            self.name(args[:2], GRADIENTS)
        elif packet is c10d._allgather_base_:
            self.name(args[:2], GATHERED)

    def _count_moves(
        self, func: Any, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if packet in (aten._to_copy, aten.copy_):
            source = args[1] if packet is aten.copy_ else args[0]
            target = args[0] if packet is aten.copy_ else result
            if source.device.type != target.device.type:
                to_host = target.device.type == "cpu"
                # The processor changes the type of numbers, whichever way they go.
                moved = target.numel() * (source if to_host else target).itemsize
                if to_host:
                    self.costs.to_host_bytes += moved
                    if not any((*args[2:], kwargs.get("non_blocking"))):
                        self.wait(source)
                else:
                    self.costs.to_device_bytes += moved
        elif func.namespace == "c10d":
            whole = max(
                (tensor.numel() * tensor.itemsize for tensor in _tensors(args)),
                default=0,
            )
            self.add_collective(packet.__name__.strip("_"), whole)
        elif func.namespace == "_c10d_functional" and packet.__name__ == "all_gather_into_tensor":
            self.add_collective("allgather", result.numel() * result.itemsize)

    def add_collective(self, kind: str, size: int) -> None:
        """Count a collective operation; `size`: of the whole tensor, in bytes."""
        times = 2 if "allreduce" in kind else 1
        self.costs.collectives[kind] += 1
        self.costs.interconnect_bytes += times * size * (self._ranks - 1) // self._ranks


class _ValuesRead(TorchFunctionMode):
    """Answers for what is no operation: numpy arrays and lists of a tensor's values are zeros.

    `torch.tensor` with a device other than the CPU first makes the tensor in host memory, as it also does
    itself.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.numpy, torch.Tensor.tolist):
            tensor = args[0]
            self._recorder.wait(tensor)
            zeros = np.zeros(tensor.shape, dtype=str(tensor.dtype).removeprefix("torch."))
            return zeros if func is torch.Tensor.numpy else zeros.tolist()
        if func is torch.tensor:
            device = kwargs.pop("device", None)
            made = torch.tensor(*args, **kwargs)
            # A fake tensor of one element keeps its value, and would really be moved.
            made.constant = None
            return made if device is None else made.to(device)
        return func(*args, **kwargs)


def _flash_flops(name: str, args: tuple[Any, ...]) -> int:
    """Operations of variable-length flash attention: two products forward and five backward, of each query
    with the keys of the longest sequence. As in torch's own counts, causality saves nothing."""
    backward = name == "_varlen_attn_backward"
    query: torch.Tensor = args[1 if backward else 0]
    longest: int = args[9 if backward else 6]
    return 2 * (5 if backward else 2) * query.numel() * longest


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in (values,) if isinstance(values, torch.Tensor) else tree_leaves(values):
        if isinstance(value, torch.Tensor):
            yield value


def _line() -> str:
    """The line of this package that is being computed."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(_PACKAGE) and "/sizing/" not in frame.filename:
            return f"{frame.filename[len(_PACKAGE) + 1 :]}:{frame.lineno}"
    return "a library"
