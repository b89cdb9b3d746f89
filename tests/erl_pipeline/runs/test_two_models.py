"""Small runs that sample from two models: a pretrained policy, and an extractor with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.plan.plan import StageKey
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from tests.erl_pipeline.runs.small_runs import SMALL, go, ids, small
from tests.random_models import save_llama

METHOD = {
    "type": "complementary",
    "experience": {"warmup_iterations": 0, "merge_every": 1, "extractor": {"batch": 2}},
}


def save_model(folder: Path) -> Path:
    """A random Llama with the words of the extractor: those of the policy and some more."""
    parts = ENVIRONMENT.tiny.extractor(FrozenLakeConfig.model_validate(SMALL["environment"]))
    assert parts is not None
    return save_llama(folder, parts.words, 128)


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["all weights", "adapter"])
def test_answers_that_cannot_be_read_are_counted_and_never_kept(
    tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    policy = {"type": "pretrained", "model": str(save_model(tmp_path / "base")), "lora": lora}
    rollouts = {"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 2}
    go(small(method=METHOD, policy=policy, rollouts=rollouts), tmp_path / "store")
    made = ids(tmp_path / "store")

    def artifact(stage: str, iteration: int = 2) -> Artifact:
        return ArtifactStore(str(tmp_path / "store")).open(made[StageKey(iteration, stage, "")])

    asked = artifact("extract_experience").manifest
    assert asked.counters["requests"] == asked.counters["parse_failures"] == 8
    assert artifact("merge_experience").manifest.counters["entries"] == 0
    assert artifact("credit_experience").manifest.counters["credits"] == 0
    extractor, before = artifact("update_extractor"), artifact("update_extractor", 1)
    assert extractor.manifest.counters["optimizer_steps"] == 0
    # Carried over: other artifacts, the same weights.
    assert weights(extractor) == weights(before)
    base = extractor.manifest.inputs.get("base")
    assert base == (None if lora is None else made[StageKey(0, "bootstrap", "")])
    assert asked.inputs["checkpoint"] == before.manifest.artifact_id
    assert artifact("evaluate_with_experience").manifest.counters["episodes"] == 2


def weights(checkpoint: Artifact) -> dict[str, str]:
    return {file.path: file.sha256 for file in checkpoint.files if file.path.endswith(".safetensors")}
