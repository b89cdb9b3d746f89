from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from erl_pipeline.config.plugins import as_in_recipes, operational_part, with_operational
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines import weights_in_memory
from erl_pipeline.engines.vllm import ENGINE
from erl_pipeline.engines.vllm.engine import VllmEngine, batch_invariant
from erl_pipeline.engines.vllm.model_servers import (
    devices_of_replicas,
    server_arguments,
    server_environment,
)
from erl_pipeline.engines.vllm.settings import ServerAddress, VllmEngineConfig, VllmSampling, read_server_list
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


def test_servers_compute_the_head_as_the_trainer_does() -> None:
    config = VllmEngineConfig(head_dtype="float32")
    assert '--hf-overrides={"head_dtype": "float32"}' in server_arguments(config)
    assert "head_dtype" not in VllmEngineConfig().model_dump()
    with pytest.raises(ValidationError, match="sets --hf-overrides itself"):
        VllmEngineConfig(head_dtype="float32", arguments=("--hf_overrides", "{}"))
    policy = {"type": "pretrained", "model": "some/model", "dtype": "bfloat16", "head_dtype": "float32"}
    run = {"name": "r", "iterations": 1, "environment": "frozen_lake", "policy": policy}
    RunConfig.model_validate(run)  # the embedded engine computes with the trainer's own head
    RunConfig.model_validate({**run, "engine": config})
    with pytest.raises(ValidationError, match=r"policy\.head_dtype: float32 and engine\.head_dtype: null"):
        RunConfig.model_validate({**run, "engine": "vllm"})


def test_a_server_in_float32_multiplies_so_in_tritons_kernels_too() -> None:
    """In TF32 SmolLM2's log-probabilities differ by .0014 on average; .0001 are allowed."""
    mine = {"VLLM_LOGGING_LEVEL": "ERROR"}
    with_mine = {"TRITON_F32_DEFAULT": "ieee", **mine}
    assert server_environment(VllmEngineConfig(dtype="float32", environment=mine)) == with_mine
    assert server_environment(VllmEngineConfig(dtype="bfloat16", environment=mine)) == mine
    of_the_user = {"TRITON_F32_DEFAULT": "tf32x3"}
    assert server_environment(VllmEngineConfig(dtype="float32", environment=of_the_user)) == of_the_user


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
    long_prompts = VllmEngineConfig(replicas=2, arguments=("-tp=2", "--prefill-context-parallel-size=2"))
    assert devices_of_replicas(long_prompts, None) == ["0,1,2,3", "4,5,6,7"]
    copies = VllmEngineConfig(replicas=2, arguments=("-tp=2", "--data-parallel-size=2"))
    assert devices_of_replicas(copies, None) == ["0,1,2,3", "4,5,6,7"]
    # A single server sees all devices.
    assert devices_of_replicas(VllmEngineConfig(), "4,5") == [None]


def test_a_second_model_gets_devices_of_its_own_where_there_are_some() -> None:
    """Such as an extractor beside the policy."""
    one, pairs = VllmEngineConfig(), VllmEngineConfig(replicas=2, arguments=("-tp=2",))
    assert devices_of_replicas(one, None, models_before=1, gpus=2) == ["1"]
    assert devices_of_replicas(one, "4,5", models_before=1) == ["5"]
    assert devices_of_replicas(pairs, None, models_before=1, gpus=8) == ["4,5", "6,7"]
    # Else both share the first ones, as on a machine with one GPU.
    assert devices_of_replicas(one, None, models_before=1, gpus=1) == [None]
    assert devices_of_replicas(one, None, models_before=1, gpus=0) == [None]
    assert devices_of_replicas(pairs, None, models_before=1, gpus=7) == ["0,1", "2,3"]


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


def test_bytes_are_repeated_one_at_a_time_or_with_batch_invariance_and_by_no_other_servers() -> None:
    batching, one = VllmEngineConfig(), VllmEngineConfig(max_in_flight=1)
    others = VllmEngineConfig.model_validate({"servers": [{"url": "http://gpu-1:8000"}], "max_in_flight": 1})
    reasons = [ENGINE.bytes_vary_because(each, False) for each in (batching, one, others)]
    assert [bool(reason) for reason in reasons] == [True, False, True]
    reasons = [ENGINE.bytes_vary_because(each, True) for each in (batching, one, others)]
    assert [bool(reason) for reason in reasons] == [False, False, True]
    started = batch_invariant(VllmEngineConfig(environment={"VLLM_LOGGING_LEVEL": "ERROR"}))
    assert started.environment == {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_BATCH_INVARIANT": "1"}


def test_the_gpus_of_all_servers_are_counted() -> None:
    arguments = ("--tensor-parallel-size=2", "--data-parallel-size=3")
    assert ENGINE.devices(VllmEngineConfig(replicas=2, arguments=arguments)) == 12
    assert ENGINE.devices(VllmEngineConfig.model_validate({"server_list": "servers.yaml"})) == 0


def test_a_missing_key_is_named_before_anything_starts(tmp_path: Path) -> None:
    address = {"url": "http://gpu-1:8000", "api_key_variable": "GPU_1_KEY"}
    config = VllmEngineConfig.model_validate({"servers": [address]})
    with pytest.raises(ConfigError, match=r"variable GPU_1_KEY \(api_key_variable of http://gpu-1:8000\)"):
        VllmEngine(config, tmp_path, environment={})


def test_importing_the_engine_imports_neither_torch_nor_models() -> None:
    heavy = "{'torch', 'transformers'} & {*sys.modules}"
    code = f"import sys, erl_pipeline.engines.vllm.engine; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_list_has_the_keys_of_engine_servers(tmp_path: Path) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(
        "- url: http://gpu-1:8000\n- url: http://gpu-2:8000\n  api_key_variable: KEY\n  copies: 7\n"
    )
    assert read_server_list(path) == (
        ServerAddress(url="http://gpu-1:8000"),
        ServerAddress(url="http://gpu-2:8000", api_key_variable="KEY", copies=7),
    )


@pytest.mark.parametrize("content", ["", "# none now\n", "[]"])
def test_no_server_is_a_list_too(tmp_path: Path, content: str) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(content)
    assert read_server_list(path) == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("- url: [", "is not YAML"),
        ("http://gpu-1:8000", r"servers: 'http://gpu-1:8000'; allowed: a list"),
        ("- http://gpu-1:8000", r"servers\.0: .http://gpu-1:8000."),
        (
            "- url: gpu-1:8000",
            r"servers\.0\.url: gpu-1:8000: allowed are addresses such as http://gpu-1:8000",
        ),
        ("- url: http://gpu-1:8000\n  key: secret", r"servers\.0\.key: unknown"),
        ("- url: http://gpu-1:8000\n- url: http://gpu-1:8000/", "names http://gpu-1:8000 twice"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "servers.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=rf"(?s)^engine\.server_list: .*servers\.yaml .*{problem}"):
        read_server_list(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.server_list: .*none\.yaml cannot be read: No such file"):
        read_server_list(tmp_path / "none.yaml")


SERVER = {"url": "http://gpu-1:8000"}


@pytest.mark.parametrize(
    "argument",
    ["--logprobs-mode=raw_logprobs", "--override_generation_config", "--port=1", "--no-enable-sleep-mode"],
)
def test_arguments_cannot_undo_what_the_pipeline_needs(argument: str) -> None:
    with pytest.raises(ValidationError, match="set by the pipeline"):
        VllmEngineConfig(arguments=(argument,))


@pytest.mark.parametrize(
    "arguments",
    [
        ('--kv-transfer-config={"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}',),
        ("--kv_transfer_config", "{}"),
        ("--kv-transfer-config.kv_connector=LMCacheConnectorV1",),
        ("--kv-offloading-size=4", "--kv-offloading-backend", "lmcache"),
    ],
)
def test_a_cache_that_may_keep_what_earlier_weights_computed_is_refused(arguments: tuple[str, ...]) -> None:
    """Most connectors do not implement vLLM's `reset_cache`, and the server reports a success."""
    with pytest.raises(ValidationError, match="may keep keys and values of earlier weights"):
        VllmEngineConfig(arguments=arguments)


def test_vllms_own_cache_outside_the_gpu_is_allowed() -> None:
    VllmEngineConfig(arguments=("--kv-offloading-size=4", "--kv-offloading-backend=native"))


def test_other_arguments_pass() -> None:
    arguments = ("--tensor-parallel-size=2", "--seed", "1", '--compilation-config={"level": 0}')
    assert VllmEngineConfig(arguments=arguments).arguments == arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--tensor-parallel-size 2",), "write --tensor-parallel-size=2, or two items"),
        (("--tensor-parallel-size=two",), "'two'; allowed is a whole number above 0"),
        (("--data-parallel-size",), "''; allowed is a whole number above 0"),
    ],
)
def test_arguments_that_no_server_can_read_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        VllmEngineConfig(arguments=arguments)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"servers": [SERVER], "sleep": True}, "a server that the run starts itself"),
        ({"servers": [SERVER], "lifecycle": "per_stage"}, "a server that the run starts itself"),
        ({"lifecycle": "per_stage", "sleep": True}, "allowed: lifecycle: persistent"),
        ({"servers": [SERVER], "transfer": "shared_memory"}, "with engine.servers use transfer: files"),
        (
            {"transfer": "shared_memory", "arguments": ["--worker-extension-cls", "mine.Extension"]},
            "sets --worker-extension-cls itself",
        ),
    ],
)
def test_a_server_cannot_rest_in_two_ways_or_on_behalf_of_others(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        VllmEngineConfig.model_validate(settings)


def test_weights_come_from_memory_where_a_run_asks_for_it() -> None:
    assert ENGINE.reads_memory(VllmEngineConfig(transfer="shared_memory"))
    assert not ENGINE.reads_memory(VllmEngineConfig())


def test_without_such_memory_a_run_that_asks_for_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_in_memory, "MEMORY", tmp_path / "missing")
    ENGINE.require_here(VllmEngineConfig())
    with pytest.raises(ConfigError, match=r"engine\.transfer: shared_memory needs a folder"):
        ENGINE.require_here(VllmEngineConfig(transfer="shared_memory"))
