"""Warnings about uncommitted code: results cannot be traced to sources that others can get."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def uncommitted_code(config: RunConfig) -> list[str]:
    """A sentence for the program and for each plug-in of a run whose git checkout has changes."""
    from erl_pipeline.config.plugins.installed import plugins
    from erl_pipeline.plan.sources import environment_packages
    from storage.artifacts.manifest import code_version

    found = []
    if code_version().endswith("-dirty"):
        found.append("the code of erl-pipeline has changes that are not committed")
    method = plugins("methods")[config.method.type]
    engine, trainer = plugins("engines")[config.engine.type], plugins("trainers")[config.trainer.type]
    packages = (*environment_packages(config), *method.packages, *engine.packages, *trainer.packages)
    foreign = [each for each in packages if not each.startswith("erl_pipeline.")]
    changed = [each for each in foreign if _has_changes(each)]
    return found + [f"package {package} has changes that are not committed" for package in changed]


def _has_changes(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return False
    origin = Path(spec.origin)
    place = origin if spec.submodule_search_locations is None else origin.parent
    try:
        done = subprocess.run(
            ["git", "-C", str(origin.parent), "status", "--porcelain", "--", str(place)],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())
