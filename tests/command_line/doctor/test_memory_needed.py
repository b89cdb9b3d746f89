from __future__ import annotations

from pathlib import Path

from tests.command_line.invoke import invoke
from tests.erl_pipeline.sizing.test_formulas import SMOLLM2_135M, write

CONFIG = """\
name: sizes
iterations: 1
environment: {type: frozen_lake, format: prose, actions: named}
policy: {type: pretrained, model: %s, dtype: bfloat16}
"""


def test_memory_is_shown_part_by_part(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG % write(SMOLLM2_135M, tmp_path / "model"))
    result = invoke("doctor", "--config", tmp_path / "config.yaml", "--store", tmp_path, "--estimate")
    assert result.status == 0, result.errors
    (moments,) = [line for line in result.output.splitlines() if "moments of AdamW" in line]
    assert moments.split() == ["trainer", "moments", "of", "AdamW", "1.08", "134.5", "M", "x", "8"]


def test_memory_as_json_sums_each_place(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG % write(SMOLLM2_135M, tmp_path / "model"))
    words = ["doctor", "--config", tmp_path / "config.yaml", "--store", tmp_path, "--estimate"]
    shown = invoke(*words, "--set", "optimizer.state_device=cpu", "--json").json["memory"]
    assert shown["totals"]["trainer's host"] == 134_515_008 * 16
    for place, total in shown["totals"].items():
        assert total == sum(part["bytes"] for part in shown["parts"] if part["place"] == place)


def test_servers_that_keep_a_gpu_to_themselves_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG % write(SMOLLM2_135M, tmp_path / "model"))
    words = ["doctor", "--config", tmp_path / "config.yaml", "--store", tmp_path, "--estimate", "--set"]
    shown = invoke(*words, "engine={type: vllm, max_context: 512}").output
    assert "On GPUs: vLLM takes nearly all memory" in shown
    assert "On GPUs" not in invoke(*words, "engine={type: vllm, max_context: 512, sleep: true}").output


def test_a_model_that_is_elsewhere_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG % (tmp_path / "none"))
    result = invoke("doctor", "--config", tmp_path / "config.yaml", "--store", tmp_path)
    assert (result.status, result.output) == (2, "")
    assert "is not on this machine" in result.errors


def test_settings_need_a_configuration(tmp_path: Path) -> None:
    result = invoke("doctor", "--set", "seed=1", "--store", tmp_path)
    assert (result.status, "--config CONFIG: name a configuration" in result.errors) == (2, True)
