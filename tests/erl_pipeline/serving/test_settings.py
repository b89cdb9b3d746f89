"""The settings of a policy that serves."""

from pathlib import Path

import pytest

from erl_pipeline.serving.settings import Metric, ServingSettings, load_serving_settings
from storage.errors import ConfigError


def test_values_of_metrics_become_rewards() -> None:
    metrics = load_serving_settings(None).feedback

    assert metrics["thumbs"].reward("up") == 1.0
    assert metrics["stars"].reward(2) == 0.25
    with pytest.raises(ValueError, match="allowed: up, down"):
        metrics["thumbs"].reward(1)
    with pytest.raises(ValueError, match="a number from 1 to 5"):
        metrics["stars"].reward(6)


def test_a_file_is_read_and_its_mistakes_are_all_said(tmp_path: Path) -> None:
    path = tmp_path / "serving.yaml"
    path.write_text("keys_file: keys.yaml\nfeedback: {solved: {min: 0, max: 1}}\n")
    settings = load_serving_settings(path)
    assert settings.keys_file == tmp_path / "keys.yaml"
    assert settings.feedback == {"solved": Metric(min=0.0, max=1.0)}
    assert ServingSettings.model_validate(settings.model_dump()) == settings

    path.write_text("memory: {top_k: 0}\nfeedback: {thumbs: {up: 2}, stars: {min: 5, max: 1}}\nlimit: 3\n")
    with pytest.raises(ConfigError) as problems:
        load_serving_settings(path)
    said = str(problems.value)
    assert "4 problems" in said
    assert "line 1: memory.top_k: 0; allowed: at least 1" in said
    assert "feedback.stars: allowed: named values such as {up: 1, down: 0}, or {min: 1, max: 5}" in said
    assert "line 3: limit: unknown key; did you mean limits?" in said


def test_a_metric_cannot_have_the_name_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "serving.yaml"
    path.write_text("feedback: {comment: {min: 0, max: 1}}\n")
    with pytest.raises(ConfigError, match="comment is a text that every server knows"):
        load_serving_settings(path)
