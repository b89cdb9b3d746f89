import subprocess
import sys
from pathlib import Path

import pytest

from erl_pipeline.config.plugins.operational import as_in_recipes, operational_part, with_operational
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.model_servers import devices_of_replicas, server_arguments
from erl_pipeline.engines.vllm.settings import VllmEngineConfig, VllmSampling
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


@pytest.mark.parametrize(
    ("replicas", "arguments", "expected"),
    [(1, (), 64), (4, (), 20), (1, ("--data-parallel-size=8",), 10), (2, ("--data-parallel-size=2",), 20)],
)
def test_each_copy_of_the_model_makes_room_for_its_share_and_a_quarter_more(
    replicas: int, arguments: tuple[str, ...], expected: int
) -> None:
    """64 in flight: a quarter of them is 16, and with a quarter more 20."""
    config = VllmEngineConfig(max_in_flight=64, replicas=replicas, arguments=arguments)
    assert f"--max-num-seqs={expected}" in server_arguments(config)


def test_each_replica_gets_as_many_devices_as_it_computes_on() -> None:
    three = VllmEngineConfig(replicas=3)
    assert devices_of_replicas(three, None) == ["0", "1", "2"]
    assert devices_of_replicas(three, "4,5,6,7") == ["4", "5", "6"]
    pairs = VllmEngineConfig(replicas=2, arguments=("--tensor-parallel-size=2",))
    assert devices_of_replicas(pairs, None) == ["0,1", "2,3"]
    in_two_items = VllmEngineConfig(replicas=2, arguments=("--tensor_parallel_size", "2", "-pp", "2"))
    assert devices_of_replicas(in_two_items, None) == ["0,1,2,3", "4,5,6,7"]
    copies = VllmEngineConfig(replicas=2, arguments=("-tp=2", "--data-parallel-size=2"))
    assert devices_of_replicas(copies, None) == ["0,1,2,3", "4,5,6,7"]
    # A single server sees all devices.
    assert devices_of_replicas(VllmEngineConfig(), "4,5") == [None]


def test_too_few_devices_for_all_replicas_are_refused() -> None:
    pairs = VllmEngineConfig(replicas=2, arguments=("--tensor-parallel-size=2",))
    with pytest.raises(ConfigError, match=r"engine\.replicas: 2 with 2 devices each need 4, and .* names 3"):
        devices_of_replicas(pairs, "0,1,2")


def test_replicas_of_servers_that_somebody_else_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="replicas: 2 is for servers that the run starts itself"):
        VllmEngineConfig.model_validate({"servers": [{"url": "http://gpu-1:8000"}], "replicas": 2})
    with pytest.raises(ValueError, match=r"with engine\.server_list leave it out, and name every server"):
        VllmEngineConfig.model_validate({"server_list": "servers.yaml", "replicas": 2})


def test_servers_are_named_in_one_place() -> None:
    with pytest.raises(ValueError, match="servers and server_list both name servers; use one of them"):
        VllmEngineConfig.model_validate({"servers": [{"url": "http://gpu-1:8000"}], "server_list": "s.yaml"})


def test_where_it_samples_is_in_no_recipe() -> None:
    listed = VllmEngineConfig.model_validate({"server_list": "servers.yaml"})
    in_recipe = as_in_recipes("engines", listed)
    assert in_recipe == VllmSampling()
    assert "server_list" not in in_recipe.model_dump()
    assert with_operational("engines", in_recipe, operational_part("engines", listed)) == listed


def test_a_missing_key_is_named_before_anything_starts(tmp_path: Path) -> None:
    address = {"url": "http://gpu-1:8000", "api_key_variable": "GPU_1_KEY"}
    config = VllmEngineConfig.model_validate({"servers": [address]})
    with pytest.raises(ConfigError, match=r"variable GPU_1_KEY \(api_key_variable of http://gpu-1:8000\)"):
        VllmEngine(config, tmp_path, environment={})


def test_importing_the_engine_imports_neither_torch_nor_models() -> None:
    heavy = "{'torch', 'transformers'} & {*sys.modules}"
    code = f"import sys, erl_pipeline.engines.vllm.engine; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
