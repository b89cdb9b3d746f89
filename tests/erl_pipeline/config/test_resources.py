"""Groups of devices and equal bytes: what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.pipeline import DeviceGroups
from erl_pipeline.config.run import RunConfig
from erl_pipeline.runs.train import require_gpus, require_ready_here
from storage.errors import ConfigError

CONFIG = Path(__file__).parents[3] / "configs" / "frozen_lake.yaml"
PROCESSES = "runner={type: prefect, task_runner: processes, workers: 2}"
GROUPS = "resources.groups={sample: [0, 1], train: [2, 3]}"
VLLM = "engine={type: vllm, max_context: 128}"


def configured(*settings: str) -> RunConfig:
    return load_config(CONFIG, list(settings))


def test_the_first_worker_samples_the_second_trains_and_others_have_no_gpu() -> None:
    groups = configured(PROCESSES, GROUPS).resources.groups
    assert groups == DeviceGroups(sample=(0, 1), train=(2, 3))
    assert groups is not None
    assert [groups.of_worker(number) for number in range(3)] == [(0, 1), (2, 3), ()]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["resources.groups={sample: [0, 1], train: [1, 2]}", PROCESSES], "GPU 1 is named twice"),
        (["resources.groups={sample: [0, 0], train: [1]}", PROCESSES], "GPU 0 is named twice"),
        (["resources.groups={sample: [0], train: []}", PROCESSES], "at least 1 value"),
        (["resources.groups={sample: [-1], train: [0]}", PROCESSES], "allowed: at least 0"),
        ([GROUPS, PROCESSES, "resources.devices=2"], "devices: 2 cannot be combined with groups"),
        ([GROUPS], r"set runner\.task_runner: processes and runner\.workers: 2"),
        ([GROUPS, PROCESSES, "runner.workers=1"], r"it has one worker process; set runner\.workers: 2"),
        ([GROUPS, "runner=in_process"], "it computes in one process; set runner: {type: prefect"),
        ([GROUPS, "runner=ray"], r"it has one worker; set runner\.workers: 2"),
        (
            [GROUPS, "runner={type: ray, workers: 2, device_stage: {gpus: 2}}"],
            r"runner\.device_stage\.gpus also says how many",
        ),
        (
            [GROUPS, PROCESSES, "trainer={type: fsdp2, processes: 3}"],
            r"groups\.train: \[2, 3\]; the trainer has 3 processes on a machine",
        ),
        (
            [GROUPS, PROCESSES, VLLM, "engine.replicas=3"],
            r"groups\.sample: \[0, 1\]; the engine's servers need 3 GPUs",
        ),
        (
            [GROUPS, PROCESSES, VLLM, 'engine.environment={CUDA_VISIBLE_DEVICES: "0"}'],
            r"engine\.environment\.CUDA_VISIBLE_DEVICES cannot be combined",
        ),
        (
            ["resources.determinism=bytes", VLLM, "engine.servers=[{url: 'http://gpu-1:8000'}]"],
            r"bytes cannot be kept: the servers in engine\.servers are not the run's own",
        ),
    ],
)
def test_what_cannot_be_together_is_refused_when_it_is_read(settings: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        configured(*settings)


def test_processes_of_two_nodes_are_counted_on_each() -> None:
    trainer = "trainer={type: fsdp2, processes: 4, nodes: 2, address: '127.0.0.1:29500'}"
    assert configured(GROUPS, PROCESSES, trainer).resources.groups is not None


def test_gpus_that_are_not_there_are_refused_at_the_start() -> None:
    config = configured(PROCESSES, GROUPS)
    require_gpus(config, ["H100"] * 4)
    with pytest.raises(ConfigError, match=r"names GPU 3, and this machine has 3 \(numbers count from 0"):
        require_gpus(config, ["H100"] * 3)
    with pytest.raises(ConfigError, match=r"resources\.groups names GPU"):
        require_ready_here(configured(PROCESSES, "resources.groups={sample: [98], train: [99]}"))


def test_equal_bytes_are_refused_on_several_kinds_of_gpus_and_with_batches_of_a_cpu_server() -> None:
    config = configured("resources.determinism=bytes", VLLM)
    require_gpus(config, ["H100", "H100"])
    with pytest.raises(ConfigError, match=r"cannot be kept on several kinds of GPUs, .* A100, H100"):
        require_gpus(config, ["H100", "A100", "H100"])
    with pytest.raises(ConfigError, match=r"without a GPU: .* set engine\.max_in_flight: 1"):
        require_gpus(config, [])
    one = configured("resources.determinism=bytes", VLLM, "engine.max_in_flight=1")
    require_gpus(one, [])
