from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.policies import hardware
from erl_pipeline.runs.train import require_ready_here, warnings_of_gpus
from storage.errors import ConfigError


def test_a_list_of_servers_that_is_not_there_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    listed = ["engine={type: vllm, max_context: 128}", f"engine.server_list={path}"]
    config = load_config("configs/frozen_lake.yaml", listed)
    with pytest.raises(ConfigError, match=r"engine\.server_list: .*servers\.yaml cannot be read"):
        require_ready_here(config)
    path.touch()
    require_ready_here(config)


@pytest.mark.parametrize(
    ("engine", "warned"),
    [
        ("{type: vllm}", True),
        ("{type: vllm, arguments: ['--gpu-memory-utilization=0.5']}", False),
        ("{type: vllm, arguments: ['--kv_cache_memory_bytes', 10G]}", False),
        ("{type: vllm, sleep: true}", False),
        ("{type: vllm, lifecycle: per_stage}", False),
        ("{type: vllm, servers: [{url: 'http://gpu-1:8000'}]}", False),
        ("transformers", False),
    ],
)
def test_an_engine_that_leaves_a_trainer_no_memory_is_warned_of_on_a_gpu(
    engine: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("configs/frozen_lake.yaml", [f"engine={engine}"])
    monkeypatch.setattr(hardware, "kinds_of_gpus", list)
    assert warnings_of_gpus(config) == []
    monkeypatch.setattr(hardware, "kinds_of_gpus", lambda: ["H100"])
    assert [sentence[:16] for sentence in warnings_of_gpus(config)] == ["vLLM takes nearl"] * warned


def test_an_embedding_model_that_is_not_there_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    """The first rollouts would be made before it is asked for."""
    config = load_config(
        "configs/frozen_lake.yaml", [f"method.memory.embedding_model={tmp_path / 'no_model'}"]
    )
    with pytest.raises(ConfigError, match=r"embedding model '.*no_model' cannot be loaded"):
        require_ready_here(config)
    default = load_config("configs/frozen_lake.yaml", ["method.memory.embedding_model=all-MiniLM-L6-v2"])
    require_ready_here(default)
