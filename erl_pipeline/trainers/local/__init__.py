"""The trainer in this process: packing, forward and backward passes, the optimizer and the two updates."""

from typing import Literal

from erl_pipeline.trainers.interface import PassSettings, Trainer, TrainerPlugin, TrainingStart


class LocalTrainerConfig(PassSettings):
    """Training in the process of the stage, on one device."""

    type: Literal["local"] = "local"


def _open(settings: LocalTrainerConfig, start: TrainingStart) -> Trainer:
    # torch takes seconds to import, which a process that only plans should not pay.
    from erl_pipeline.trainers.local.trainer import LocalTrainer

    return LocalTrainer(start, settings.passes)


def _require_here(settings: LocalTrainerConfig) -> None:
    if settings.attention in ("flash", "flex"):
        from erl_pipeline.trainers.local.attention import require_attention

        require_attention(settings.attention)


TRAINER = TrainerPlugin(settings=LocalTrainerConfig, open=_open, require_here=_require_here)
