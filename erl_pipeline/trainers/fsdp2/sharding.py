"""A model whose weights are spread over the ranks, as seen from one of them."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from erl_pipeline.policies.hardware import add_in_fixed_order, training_device
from erl_pipeline.trainers.fsdp2.launcher import DETERMINISTIC_VARIABLE, TIMEOUT_VARIABLE
from erl_pipeline.trainers.local.preparation import blocks_of
from storage.errors import ConfigError


class ProcessRanks:
    """The ranks of torch's process group; see `erl_pipeline.trainers.local.packing.Ranks`.

    The first `writers` of them write files: those on the machine of the stage, where None all of them.
    """

    def __init__(self, mesh: DeviceMesh, device: torch.device, writers: int | None = None) -> None:
        self.mesh = mesh
        self.device = device
        self.rank = mesh.get_rank()
        self.count = mesh.size()
        self.writers = min(writers or self.count, self.count)
        self.sums_now = True

    def add_up(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def exchange(self, text: str) -> list[str]:
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(self.device)
        length = torch.tensor([len(data)], device=self.device)
        lengths = [torch.zeros_like(length) for _ in range(self.count)]
        dist.all_gather(lengths, length)
        padded = torch.zeros(int(max(lengths)), dtype=torch.uint8, device=self.device)
        padded[: len(data)] = data
        texts = [torch.zeros_like(padded) for _ in range(self.count)]
        dist.all_gather(texts, padded)
        return [
            bytes(each[: int(size)].cpu().numpy()).decode() for each, size in zip(texts, lengths, strict=True)
        ]

    def gather_weights(self, model: PreTrainedModel) -> None:
        cast(FSDPModule, model).unshard()

    def let_go_of_weights(self, model: PreTrainedModel) -> None:
        cast(FSDPModule, model).reshard()

    def sum_gradients(self, model: PreTrainedModel, now: bool) -> None:
        self.sums_now = now
        for block in blocks_of(model):
            cast(FSDPModule, block).set_requires_gradient_sync(now)

    def rows(self, rows: int) -> slice:
        """Which rows of a tensor this rank has: as many as the others, except that the last ranks may have
        fewer or none."""
        share = -(-rows // self.count)
        return slice(min(self.rank * share, rows), min((self.rank + 1) * share, rows))

    def gather(self, rows: torch.Tensor, shape: torch.Size, to: int) -> torch.Tensor | None:
        """A tensor of this shape, put together on the device of the rank `to` from the rows that each rank
        has; None on the others."""
        share = -(-shape[0] // self.count)
        # All send as many rows, in bytes, since not every backend knows every type.
        sent = rows.to(self.device).contiguous()
        if len(rows) < share:
            sent = torch.cat([sent, sent.new_zeros((share - len(rows), *shape[1:]))])
        whole = sent.new_empty((self.count * share, *shape[1:])) if self.rank == to else None
        dist.gather(
            _as_bytes(sent), None if whole is None else list(_as_bytes(whole).chunk(self.count)), dst=to
        )
        return None if whole is None else whole[: shape[0]]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def join_ranks() -> ProcessRanks:
    """Connect to the other ranks, as torch's launcher has told this process: through NCCL where the machines
    have GPUs, on the GPU of this rank's number among those of its machine, else through gloo."""
    deterministic = os.environ[DETERMINISTIC_VARIABLE] == "1"
    if deterministic:
        add_in_fixed_order()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    on_gpu = training_device().type == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=timedelta(seconds=float(os.environ[TIMEOUT_VARIABLE])),
        device_id=device if on_gpu else None,
    )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    ranks = ProcessRanks(mesh, device, writers=int(os.environ["LOCAL_WORLD_SIZE"]))
    if deterministic and on_gpu:
        kinds = sorted(set(ranks.exchange(torch.cuda.get_device_name(device))))
        if len(kinds) > 1:
            raise ConfigError(
                f"resources.determinism: bytes cannot be kept on several kinds of GPUs: {', '.join(kinds)}"
            )
    return ranks


def shard(model: PreTrainedModel, ranks: ProcessRanks) -> None:
    """Keep only this rank's rows of each weight in memory, and move the model to the rank's device.

    Each block of the model gathers its weights when it computes, and then releases them. Embeddings, last
    norm and head, which may share a weight, are gathered by `ProcessRanks.gather_weights`. Gradients are
    added up over the ranks in fp32.
    """
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in (*blocks_of(model), model):
        fully_shard(module, mesh=ranks.mesh, mp_policy=policy)
        sharded = cast(FSDPModule, module)
        # The loss is a sum over the tokens of all ranks, each with its weight: gradients are summed, not
        # averaged.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    # FSDP finds out at the first pass through the whole model what belongs to it. Later passes may begin at
    # its body, and compute the head afterwards.
    with torch.no_grad(), _gathered_early(blocks_of(model)):
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=ranks.device), use_cache=False)
    ranks.let_go_of_weights(model)


@contextmanager
def _gathered_early(blocks: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Have each block's weights gathered while the block before it computes, in the order in which blocks
    compute within the context.

    FSDP does so by itself only in passes that begin at the whole model. In a pass that begins at its body,
    each block is the first one to FSDP, whose weights are gathered when the device has done all else.
    """
    order: list[torch.nn.Module] = []
    hooks = [block.register_forward_pre_hook(lambda block, _: order.append(block)) for block in blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for block, following in pairwise(order):
        cast(FSDPModule, block).set_modules_to_forward_prefetch([cast(FSDPModule, following)])


def own_rows(weight: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a weight of a sharded model; they share its memory."""
    rows: torch.Tensor = cast(DTensor, weight.detach()).to_local()
    return rows


def whole_tensor(value: Any) -> torch.Tensor:
    """All rows of a weight, in host memory; all ranks must call this. Buffers are whole on each rank."""
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return cast(torch.Tensor, whole).detach().cpu()
