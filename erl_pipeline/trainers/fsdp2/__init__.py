"""The trainer in several processes, each with a part of the weights and of the optimizer (FSDP2, as of
`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.trainers.interface import Trainer, TrainerPlugin, TrainingStart

_NOT_OFFERED = {
    "nnodes": "all processes run on the machine of the stage",
    "nodes": "all processes run on the machine of the stage",
}


class Fsdp2TrainerConfig(PluginSettings):
    """Training in processes of their own on one machine, on a GPU each or all on the CPU. They share weights,
    gradients, the optimizer's state and the tokens of each step. The losses are those of `local`."""

    type: Literal["fsdp2"] = "fsdp2"
    processes: int = Field(ge=1)
    """How many. On GPUs at most as many as there are; on a CPU at most as many as it has cores. Nothing else
    must divide by it. Sums are rounded in another order with another number, so it is part of what
    checkpoints follow from; a run may go on with another number from its last checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _one_machine(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name in _NOT_OFFERED:
                raise ValueError(f"{name} is not offered: {_NOT_OFFERED[name]}; leave it out")
        return values


def _open(settings: Fsdp2TrainerConfig, start: TrainingStart) -> Trainer:
    # torch takes seconds to import, which a process that only plans should not pay.
    from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer

    return Fsdp2Trainer(settings.processes, start)


def _require_here(settings: Fsdp2TrainerConfig) -> None:
    from erl_pipeline.trainers.fsdp2.devices import require_devices

    require_devices(settings.processes)


TRAINER = TrainerPlugin(
    settings=Fsdp2TrainerConfig,
    open=_open,
    require_here=_require_here,
    elsewhere=True,
    processes=lambda settings: settings.processes,
)
