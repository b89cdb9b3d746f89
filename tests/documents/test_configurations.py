"""YAML in documents that is a configuration, or a part of one, loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.cluster import ClusterConfig
from erl_pipeline.serving.settings import ServingSettings
from storage.errors import ConfigError
from tests.documents.pages import pages

TINY = {"name": "shown", "iterations": 1, "environment": {"type": "frozen_lake"}, "policy": {"type": "tiny"}}
PROSE = {
    **TINY,
    "environment": {"type": "frozen_lake", "format": "prose"},
    "policy": {"type": "pretrained", "model": "folder"},
}
SNIPPETS = [(page.path, text) for page in pages() for language, text in page.blocks() if language == "yaml"]


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS, ids=[page for page, _ in SNIPPETS])
def test_configurations_load(page: str, snippet: str, tmp_path: Path) -> None:
    """A part of a configuration is completed with the settings of a small run. A text with `nodes` is a
    cluster, one with `keys_file` the settings of a policy that serves."""
    shown = yaml.safe_load(snippet)
    if "nodes" in shown:
        ClusterConfig.model_validate(shown)
        return
    if "keys_file" in shown:
        ServingSettings.model_validate(shown)
        return
    assert set(shown) <= set(RunConfig.model_fields), f"{page}: unknown keys"
    refused = [_refused({**base, **shown}, tmp_path) for base in (TINY, PROSE)]
    assert "" in refused, f"{page}: {refused}"


def _refused(values: Mapping[str, Any], folder: Path) -> str:
    file = folder / "shown.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    try:
        load_config(file)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_wrong_key_is_found(tmp_path: Path) -> None:
    assert "epoch" in _refused({**TINY, "update": {"epoch": 2}}, tmp_path)
