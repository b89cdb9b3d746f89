"""The trainer in several processes, each with a part of the weights and of the optimizer (FSDP2,
`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from erl_pipeline.network import Address, OtherNodes
from erl_pipeline.trainers.interface import (
    GradientSums,
    Passes,
    PassSettings,
    Trainer,
    TrainerPlugin,
    TrainingStart,
)
from storage.errors import ConfigError

if TYPE_CHECKING:
    from erl_pipeline.trainers.fsdp2.nodes import NodesConfig


class Fsdp2Processes(PassSettings):
    """The settings that checkpoints depend on."""

    type: Literal["fsdp2"] = "fsdp2"
    processes: int = Field(ge=1)
    """Number of processes on all machines together. Each needs a GPU or, without GPUs, a CPU core. Another
    number rounds sums in another order, so checkpoints depend on it; a run may continue from its last
    checkpoint with another number."""
    gradient_sums: GradientSums = "microbatch"
    """When the processes add up the gradients of the model's blocks: after each microbatch, or once in a
    step. `step` sends less, and each process needs 4 bytes more for each trained weight of the blocks. Sums
    are rounded in another order, so checkpoints depend on it."""

    @property
    def passes(self) -> Passes:
        """How passes are computed."""
        return replace(super().passes, gradient_sums=self.gradient_sums)


class Fsdp2TrainerConfig(Fsdp2Processes):
    """Training in several processes, each on its own GPU or all on CPUs, on one machine or on several.
    Weights, gradients, the optimizer's state and the tokens of each step are spread over them. The losses are
    those of `local`."""

    nodes: int = Field(default=1, ge=1)
    """Number of machines, each of which has as many of the processes. With `runner.type: ray` Ray finds them;
    else `erl-pipeline trainer-node` must run on each but the one that computes the stage. No artifact depends
    on this, nor on the settings below."""
    address: str | None = None
    """`HOST:PORT` on which the machine that computes the stage waits for the other nodes: an address of its
    own at which they reach it. Needed for more than one node, unless Ray finds them."""
    start_seconds: float = Field(default=120, gt=0)
    """How long to wait for the other nodes."""
    timeout_seconds: float = Field(default=1800, gt=0)
    """How long a process waits for the others in one exchange between them (the timeout of NCCL and gloo);
    then the training fails. Processes wait for each other while each writes a tensor of a checkpoint: allow
    for the speed of the store."""
    sleep: bool = False
    """On GPUs that training shares with sampling: keep the processes between trainings, with the policy and
    the optimizer's state in host memory, which then holds all of a checkpoint. Else they end before a policy
    is sampled, and read the checkpoint again. This has not been run on a GPU yet."""

    @field_validator("address")
    @classmethod
    def _can_be_read(cls, address: str | None) -> str | None:
        if address is not None and not Address.parse(address).port:
            raise ValueError(f"{address!r}: the other nodes must know the port; name one from 1 to 65535")
        return address

    @model_validator(mode="after")
    def _possible_together(self) -> Fsdp2TrainerConfig:
        if self.processes % self.nodes:
            raise ValueError(
                f"processes: {self.processes} cannot be shared equally among nodes: {self.nodes}; choose a "
                "multiple of nodes"
            )
        return self


def _open(settings: Fsdp2TrainerConfig, start: TrainingStart) -> Trainer:
    # torch takes seconds to import, which a process that only plans should not pay.
    from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer

    others = None if start.context is None else start.context.other_nodes
    return Fsdp2Trainer(
        settings.processes,
        start,
        nodes=_nodes(settings, others),
        passes=settings.passes,
        timeout_seconds=settings.timeout_seconds,
        sleeps=settings.sleep,
    )


def _nodes(settings: Fsdp2TrainerConfig, others: OtherNodes | None) -> NodesConfig | None:
    """Where the nodes find each other; None for one node. Raises ConfigError where nobody brings them
    there."""
    if settings.nodes == 1:
        return None
    from erl_pipeline.trainers.fsdp2.nodes import NodesConfig

    if settings.address is not None:
        return NodesConfig(settings.nodes, Address.parse(settings.address), settings.start_seconds)
    if others is None:
        raise ConfigError(
            f"trainer.nodes: {settings.nodes} needs trainer.address here, HOST:PORT of this machine at "
            "which the other nodes reach it: only runner.type: ray finds the nodes itself"
        )
    return NodesConfig(settings.nodes, Address(others.host, 0), settings.start_seconds, others=others)


def _require_here(settings: Fsdp2TrainerConfig) -> None:
    from erl_pipeline.trainers.fsdp2.devices import require_devices

    require_devices(settings.processes, settings.nodes)
    if settings.attention in ("flash", "flex"):
        from erl_pipeline.trainers.local.attention import require_attention

        require_attention(settings.attention)
    nodes = _nodes(settings, None)
    if nodes is not None:
        nodes.own_number()


TRAINER = TrainerPlugin(
    settings=Fsdp2TrainerConfig,
    open=_open,
    require_here=_require_here,
    elsewhere=True,
    processes=lambda settings: settings.processes,
    processes_here=lambda settings: settings.processes // settings.nodes,
    sleeps=lambda settings: settings.sleep,
    in_recipes=Fsdp2Processes,
    nodes_to_find=lambda settings: settings.nodes - 1 if settings.address is None else 0,
)
