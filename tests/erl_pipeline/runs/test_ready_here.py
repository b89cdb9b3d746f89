from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.runs.train import require_ready_here
from storage.errors import ConfigError


def test_a_list_of_servers_that_is_not_there_is_named_before_anything_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    listed = ["engine={type: vllm, max_context: 128}", f"engine.server_list={path}"]
    config = load_config("configs/frozen_lake.yaml", listed)
    with pytest.raises(ConfigError, match=r"engine\.server_list: .*servers\.yaml cannot be read"):
        require_ready_here(config)
    path.touch()
    require_ready_here(config)
