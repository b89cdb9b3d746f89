"""A model whose weights are spread over the ranks, as seen from one of them."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from erl_pipeline.policies.hardware import training_device
from erl_pipeline.trainers.fsdp2.place import TCP, Place


class ProcessRanks:
    """The ranks of torch's process group; see `erl_pipeline.trainers.local.ranks.Ranks`."""

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self.mesh = mesh
        self.device = device
        self.rank = mesh.get_rank()
        self.count = mesh.size()

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

    def rows(self, rows: int) -> slice:
        """Which rows of a tensor this rank has: as many as the others, except that the last ranks may have
        fewer or none."""
        share = -(-rows // self.count)
        return slice(min(self.rank * share, rows), min((self.rank + 1) * share, rows))

    def whole(self, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """A tensor of this shape, put together from the rows that each rank has."""
        stride = torch.empty(shape, device="meta").stride()
        shard = DTensor.from_local(
            rows.to(self.device), self.mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )
        return shard.full_tensor()


def join_ranks(place: Place) -> ProcessRanks:
    """Connect to the other ranks: through NCCL where the machines have GPUs, on the GPU of this rank's number
    among those of its machine, else through gloo."""
    torch.set_num_threads(place.threads)
    on_gpu = training_device().type == "cuda"
    device = torch.device("cuda", place.local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=_rendezvous(place),
        rank=place.rank,
        world_size=place.processes,
        device_id=device if on_gpu else None,
    )
    return ProcessRanks(init_device_mesh(device.type, (place.processes,)), device)


def _rendezvous(place: Place) -> Any:
    # Public names of torch, which it does not declare as such.
    if not place.rendezvous.startswith(TCP):
        return dist.FileStore(place.rendezvous, place.processes)  # type: ignore[attr-defined]
    host, _, port = place.rendezvous.removeprefix(TCP).rpartition(":")
    return dist.TCPStore(  # type: ignore[attr-defined]
        host,
        int(port),
        place.processes,
        is_master=place.listening is not None,
        wait_for_workers=False,
        master_listen_fd=place.listening,
    )


def shard(model: PreTrainedModel, ranks: ProcessRanks) -> None:
    """Keep only this rank's rows of each weight in memory, and move the model to the rank's device.

    Each block of the model gathers its weights when it computes, and then releases them. Embeddings, last
    norm and head, which may share a weight, are gathered by `ProcessRanks.gather_weights`. Gradients are
    added up over the ranks in fp32.
    """
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*blocks, model):
        fully_shard(module, mesh=ranks.mesh, mp_policy=policy)
        sharded = cast(FSDPModule, module)
        # The loss is a sum over the tokens of all ranks, each with its weight: gradients are summed, not
        # averaged.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)
    # FSDP finds out at the first pass through the whole model what belongs to it. Later passes may begin at
    # its body, and compute the head afterwards.
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=ranks.device), use_cache=False)
    ranks.let_go_of_weights(model)


def own_rows(weight: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a weight of a sharded model; they share its memory."""
    rows: torch.Tensor = cast(DTensor, weight.detach()).to_local()
    return rows


def whole_tensor(value: Any) -> torch.Tensor:
    """All rows of a weight, in host memory; all ranks must call this. Buffers are whole on each rank."""
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    return cast(torch.Tensor, whole).detach().cpu()
