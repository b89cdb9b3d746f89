import subprocess
import sys
from pathlib import Path

import pytest

from erl_pipeline.config.generation import VllmEngineConfig
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.model_servers import server_arguments
from storage.errors import ConfigError


def test_settings_become_the_servers_command_line() -> None:
    config = VllmEngineConfig(
        dtype="float16",
        max_in_flight=8,
        max_context=512,
        enforce_eager=True,
        sleep=True,
        arguments=("--seed=1",),
    )
    assert server_arguments(config) == [
        "--dtype=float16",
        "--max-num-seqs=8",
        "--max-model-len=512",
        "--no-enable-chunked-prefill",
        "--enable-sleep-mode",
        "--enforce-eager",
        "--seed=1",
    ]


def test_a_missing_key_is_named_before_anything_starts(tmp_path: Path) -> None:
    address = {"url": "http://gpu-1:8000", "api_key_variable": "GPU_1_KEY"}
    config = VllmEngineConfig.model_validate({"servers": [address]})
    with pytest.raises(ConfigError, match=r"environment variable GPU_1_KEY \(api_key_variable\) is not set"):
        VllmEngine(config, tmp_path, environment={})


def test_importing_the_engine_imports_neither_torch_nor_models() -> None:
    heavy = "{'torch', 'transformers'} & {*sys.modules}"
    code = f"import sys, erl_pipeline.engines.vllm.engine; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
