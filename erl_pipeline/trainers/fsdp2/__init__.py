"""The trainer in several processes, each with a part of the weights and of the optimizer (FSDP2,
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
    """Training in several processes on one machine, each on its own GPU or all on the CPU. Weights,
    gradients, the optimizer's state and the tokens of each step are spread over them. The losses are those of
    `local`."""

    type: Literal["fsdp2"] = "fsdp2"
    processes: int = Field(ge=1)
    """Number of processes: at most the number of GPUs or, without GPUs, of CPU cores. No other setting has to
    be divisible by it. Another number rounds sums in another order, so checkpoints depend on it; a run may
    continue from its last checkpoint with another number."""

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
