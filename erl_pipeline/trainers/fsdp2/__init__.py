"""The trainer in several processes, each with a part of the weights and of the optimizer (FSDP2,
`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.network import Address
from erl_pipeline.trainers.interface import Trainer, TrainerPlugin, TrainingStart

if TYPE_CHECKING:
    from erl_pipeline.trainers.fsdp2.meeting import Meeting

KEY_VARIABLE = "ERL_PIPELINE_TRAINER_KEY"


class Fsdp2Processes(PluginSettings):
    """The settings that checkpoints depend on."""

    type: Literal["fsdp2"] = "fsdp2"
    processes: int = Field(ge=1)
    """Number of processes on all machines together. Each needs a GPU or, without GPUs, a CPU core. Another
    number rounds sums in another order, so checkpoints depend on it; a run may continue from its last
    checkpoint with another number."""


class Fsdp2TrainerConfig(Fsdp2Processes):
    """Training in several processes, each on its own GPU or all on CPUs, on one machine or on several.
    Weights, gradients, the optimizer's state and the tokens of each step are spread over them. The losses are
    those of `local`."""

    nodes: int = Field(default=1, ge=1)
    """Number of machines, each of which has as many of the processes. On each but the one that computes the
    stage, `erl-pipeline trainer-node` must run. No artifact depends on this, nor on the settings below."""
    address: str | None = None
    """`HOST:PORT` on which the machine that computes the stage waits for the other nodes: an address of its
    own at which they reach it. Needed for more than one node."""
    key_variable: str = KEY_VARIABLE
    """Environment variable that holds a secret of at least 16 characters, the same on all nodes."""
    start_seconds: float = Field(default=120, gt=0)
    """How long to wait for the other nodes."""

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
        if self.nodes > 1 and self.address is None:
            raise ValueError(
                f"nodes: {self.nodes} needs an address: HOST:PORT of the machine that computes the stage, at "
                "which the other nodes reach it"
            )
        return self


def _open(settings: Fsdp2TrainerConfig, start: TrainingStart) -> Trainer:
    # torch takes seconds to import, which a process that only plans should not pay.
    from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer

    return Fsdp2Trainer(settings.processes, start, meeting=_meeting(settings))


def _meeting(settings: Fsdp2TrainerConfig) -> Meeting | None:
    """Where the nodes meet; None for one node. Raises ConfigError without the key."""
    if settings.nodes == 1:
        return None
    from erl_pipeline.trainers.fsdp2.line import key_from
    from erl_pipeline.trainers.fsdp2.meeting import Meeting

    assert settings.address is not None
    return Meeting(
        processes=settings.processes,
        nodes=settings.nodes,
        address=Address.parse(settings.address),
        key=key_from(os.environ, settings.key_variable, "trainer.key_variable"),
        key_variable=settings.key_variable,
        start_seconds=settings.start_seconds,
    )


def _require_here(settings: Fsdp2TrainerConfig) -> None:
    from erl_pipeline.trainers.fsdp2.devices import require_devices

    require_devices(settings.processes, settings.nodes)
    meeting = _meeting(settings)
    if meeting is not None:
        meeting.own_number()


TRAINER = TrainerPlugin(
    settings=Fsdp2TrainerConfig,
    open=_open,
    require_here=_require_here,
    elsewhere=True,
    processes=lambda settings: settings.processes,
    in_recipes=Fsdp2Processes,
)
