"""What a stage takes from a checkpoint to sample from a server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.erl_pipeline.runs.adapted_runs import config, save_base
from tests.erl_pipeline.runs.small_runs import go, ids

SAMPLER = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import erl_pipeline.stages.rollouts.generate_rollouts, erl_pipeline.engines.vllm.engine
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.engines.interface import POLICY
from erl_pipeline.engines.vllm.serving_copy import write_serving_copy
from erl_pipeline.plan.stage import Resources, WorkerSettings
from erl_pipeline.policies.checkpoints import BASE, CHECKPOINT, WeightsSettings
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint

uri, copy, checkpoint_id, base_id = sys.argv[1:]
weights = WeightsSettings(dtype="float32", lora=LoraConfig(rank=4, alpha=8), adapter_seed=0)
with Resources(WorkerSettings(uri, "adapted", 1)) as resources:
    inputs = {CHECKPOINT: resources.store.open(checkpoint_id)}
    if base_id != checkpoint_id:
        inputs[BASE] = resources.store.open(base_id)
    found = sampled_checkpoint(SimpleNamespace(inputs=inputs, resources=resources), weights, POLICY)
    served = found.model.served()
    write_serving_copy(served.base_folder, Path(copy), served.head)
    print(json.dumps({
        "context": found.context_length,
        "vocabulary": [len(found.tokenizer), served.probe.hot_logprobs.shape[1]],
        "base_logprobs": served.probe.base_logprobs is not None,
        "adapter": [served.adapter.folder is not None, served.adapter.rank, served.adapter.modules],
        "model classes": sorted(
            name
            for name in sys.modules
            if name in ("transformers.modeling_utils", "peft") or name.endswith(".modeling_llama")
        ),
    }))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    go(config(save_base(folder / "base")), folder / "store", 1)
    return folder / "store"


@pytest.mark.parametrize("stage", ["bootstrap", "fine_tune"])
def test_a_sampler_of_a_server_has_no_model_class(store: Path, tmp_path: Path, stage: str) -> None:
    """Up to the requests to the server: its engine is imported, and its copy of the weights is written."""
    made = {place.stage: artifact_id for place, artifact_id in ids(store, "adapted").items()}
    command = [sys.executable, "-c", SAMPLER, str(store), str(tmp_path / "copy")]
    run = subprocess.run([*command, made[stage], made["bootstrap"]], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    found = json.loads(run.stdout.splitlines()[-1])
    trained = stage == "fine_tune"
    modules = [f"{name}_proj" for name in ("down", "gate", "k", "o", "q", "up", "v")]
    assert found["adapter"] == [trained, 4, modules]
    assert found["base_logprobs"] is trained
    assert found["vocabulary"][0] == found["vocabulary"][1]
    assert found["context"] > 24
    assert (tmp_path / "copy" / "output_head.safetensors").is_file()
    assert found["model classes"] == []
