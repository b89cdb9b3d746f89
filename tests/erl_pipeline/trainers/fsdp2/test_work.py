"""Data that is sent to the ranks in files arrives unchanged."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
from erl_pipeline.trainers.fsdp2.work import (
    WORK,
    Begin,
    FineTune,
    Reinforce,
    Save,
    Score,
    read_metrics,
    read_sequences,
    write_metrics,
    write_sequences,
)
from erl_pipeline.trainers.interface import Passes
from erl_pipeline.trainers.metrics import FineTuneMetrics, SequenceRecord
from tests.erl_pipeline.trainers.fsdp2.rows import ROWS

STORED = StoredPolicy(
    CheckpointParts("b", "a", Path("/a/model"), Path("/b/model")),
    WeightsSettings(dtype="bfloat16", lora=LoraConfig(rank=2, alpha=4), adapter_seed=7),
)
REPLAY = ReplayLoss(role="replay", corrected=True, shaping_beta=0.1, weight_cap=None, clip=True)
OBJECTIVE = ObjectiveConfig.model_validate({"kl_coefficient": 0.1, "roles": {"attempt": {"weight": 0.5}}})


def test_sequences_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        *ROWS,
        replace(ROWS[0], behaviour_logprobs=(), advantage=1 / 3, weight=0.1, temperature=0.7),
        replace(ROWS[1], response_token_ids=(), response_mask=(), behaviour_logprobs=()),
    ]
    for some in (rows, []):
        write_sequences(tmp_path / "rows", some)
        assert read_sequences(tmp_path / "rows") == some


def test_orders_come_back_as_they_were() -> None:
    for work in (
        Begin(STORED, Path("/b"), OptimizerConfig(learning_rate=0.1), Passes("blocks", True)),
        Reinforce(OBJECTIVE, UpdateConfig(epochs=2), 3, STORED, REPLAY),
        Reinforce(OBJECTIVE, UpdateConfig(), 3, "own_base", None),
        FineTune(FineTuneConfig(steps=2), 5, (0.1, 1 / 3)),
        Score("entropies", 2048),
        Save(Path("/c")),
    ):
        assert WORK.validate_python(json.loads(json.dumps(WORK.dump_python(work, mode="json")))) == work


def test_metrics_come_back_with_numbers_that_are_not_finite(tmp_path: Path) -> None:
    record = SequenceRecord(weight=1.0, loss=1 / 3, token_logprobs=(-0.1, 0.0))
    numbers: dict[str, Any] = dict.fromkeys(FineTuneMetrics.__dataclass_fields__, 1)
    metrics = FineTuneMetrics(
        **{**numbers, "loss": math.inf, "grad_norm": 0.1, "attention": "rows", "records": [record]}
    )
    write_metrics(tmp_path / "metrics", metrics)
    assert read_metrics(FineTuneMetrics, tmp_path / "metrics") == metrics
