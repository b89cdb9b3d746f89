"""What a rank asks for in a pass, and when, seen from one of two ranks of torch's process group `fake`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, shard
from erl_pipeline.trainers.fsdp2.shared_files import SharedFiles, SharedTensor
from tests import forked
from tests.random_models import random_llama


def _first_of_two() -> ProcessRanks:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    return ProcessRanks(init_device_mesh("cpu", (2,)), torch.device("cpu"))


class _Gathers(TorchDispatchMode):
    """Notes each gathering of a tensor, or of a block's weights."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.ops.c10d._allgather_base_.default, torch.ops.c10d.gather_.default):
            self._seen.append("gather")
        return func(*args, **(kwargs or {}))


def _seen_in_a_pass() -> list[str]:
    ranks = _first_of_two()
    model = random_llama(31, hidden=32, intermediate=48, heads=4, key_value_heads=2, positions=64)
    shard(model, ranks)
    seen: list[str] = []

    def noted(number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            seen.append(f"block {number}")
            return forward(*args, **kwargs)

        return noting

    for number, block in enumerate(model.model.layers):
        block.forward = noted(number, block.forward)
    with _Gathers(seen):
        ranks.gather_weights(model)
        hidden = model.base_model(input_ids=torch.zeros(1, 3, dtype=torch.long), use_cache=False)
        hidden.last_hidden_state.sum().backward()
    return seen


def test_the_next_blocks_weights_are_asked_for_before_a_block_computes() -> None:
    """Else they would come when a GPU has computed the block. First what is outside of the two blocks; in the
    backward pass each block is asked for again, but what is outside has stayed."""
    seen = forked.call(f"{__name__}:_seen_in_a_pass")
    assert seen == ["gather", "gather", "gather", "block 0", "block 1", "gather", "gather"]


class _Moves(TorchFunctionMode):
    """Notes each move to host memory."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cpu:
            self._seen.append("move")
        return func(*args, **(kwargs or {}))


def _seen_in_writing(folder: Path) -> list[str]:
    ranks = _first_of_two()
    tensors = {name: SharedTensor(torch.ones(2, 3), torch.Size([4, 3]), True) for name in "abcd"}
    seen: list[str] = []
    with _Moves(seen), _Gathers(seen):
        SharedFiles({"one": ["a", "b"], "two": ["c", "d"]}, tensors).write(folder, ranks)
    return seen


def test_all_writers_have_their_tensors_before_one_moves_its_own_to_host_memory(tmp_path: Path) -> None:
    """Else the others would wait for its move. Each of two ranks writes a file of two tensors."""
    seen = forked.call(f"{__name__}:_seen_in_writing", tmp_path)
    assert seen == ["gather", "gather", "move"] * 2
