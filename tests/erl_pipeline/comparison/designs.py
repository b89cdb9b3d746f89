"""A configuration whose comparison takes seconds, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.command_line.invoke import SMALL


def write_base(folder: Path, **environment: Any) -> Path:
    """A run that takes seconds, with test boards unless `environment` says otherwise."""
    settings = yaml.safe_load(SMALL)
    settings["environment"] |= {"test_boards": 6, **environment}
    settings["fine_tune"] = {"steps": 1}
    # Without the comparison's own rule, weights would be pruned before they are evaluated on the test tasks.
    settings["retention"] = {"checkpoints": 1, "optimizer": 1}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def write_arms(folder: Path, search: dict[str, Any] | None = None, **arms: dict[str, Any]) -> Path:
    """A comparison file next to the base."""
    path = folder / "arms.yaml"
    comparison = {"base": "small.yaml", "search": search, "arms": arms}
    path.write_text(json.dumps({"comparison": comparison}))  # JSON is YAML.
    return path
