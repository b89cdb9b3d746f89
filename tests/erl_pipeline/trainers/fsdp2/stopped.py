"""Training that goes on until something ends it, and what is left of its processes."""

from __future__ import annotations

import shutil
from pathlib import Path

from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig
from erl_pipeline.policies.checkpoints import CHECKPOINT, WeightsSettings
from erl_pipeline.stages.training.distillation import DATASET, FINE_TUNE, NEWEST, FineTuneSettings
from erl_pipeline.trainers.fsdp2 import Fsdp2TrainerConfig
from storage.tables.training import SftRow, write_sft_rows
from tests.erl_pipeline.stages.calls import Bench

ROW = SftRow(
    sft_row_id="row",
    prompt=({"role": "user", "content": "left"},),
    completion=({"role": "assistant", "content": "right"},),
    input_token_ids=(1, 3, 5, 2),
    loss_mask=(0, 0, 1, 1),
    trajectory_id="trajectory",
    role=None,
    reflection_trajectory_id=None,
    first_trajectory_id="trajectory",
    memory_entry_ids=(),
    task_id="task",
    task_type="words",
    episode_id="episode",
    iteration=1,
    policy_version="first",
    weight=1.0,
)


class EndlessStage:
    """A fine-tuning of far more steps than a test lasts."""

    def __init__(self, bench: Bench, trainer: Fsdp2TrainerConfig, first: Path) -> None:
        self._bench = bench
        checkpoint = bench.commit(
            "bootstrap", "checkpoint", lambda folder: shutil.copytree(first / "model", folder / "model")
        )
        dataset = bench.commit(
            "build_distillation", "sft_dataset", lambda folder: write_sft_rows(folder / DATASET, [ROW])
        )
        self._inputs = {CHECKPOINT: checkpoint, NEWEST: dataset}
        self._settings = FineTuneSettings(
            fine_tune=FineTuneConfig(steps=100_000),
            optimizer=OptimizerConfig(),
            trainer=trainer,
            weights=WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
        )

    def compute(self) -> None:
        """Begin it, and raise what ends it."""
        self._bench.compute(FINE_TUNE, self._settings, self._inputs)

    def committed(self) -> list[str]:
        """The artifacts that it has made."""
        return list(self._bench.store.ids(FINE_TUNE.name))


def is_there(process: int) -> bool:
    """Whether a process runs, and is not a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
