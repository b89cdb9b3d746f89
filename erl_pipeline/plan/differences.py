"""How two recipes of one stage differ, in words."""

from __future__ import annotations

from storage.artifacts.recipe import Recipe
from storage.runs.run import config_differences


def recipe_differences(old: Recipe, new: Recipe) -> list[str]:
    """The differences in settings, code, version, seed and index, one line each; inputs last, by name."""
    lines = config_differences(old.settings, new.settings)
    for package in sorted(old.code.keys() | new.code.keys()):
        if old.code.get(package) != new.code.get(package):
            lines.append(f"the code of {package} has changed")
    if old.stage_version != new.stage_version:
        lines.append(f"stage version: {old.stage_version} -> {new.stage_version}")
    if old.seed != new.seed:
        lines.append(f"seed: {old.seed} -> {new.seed}")
    if old.index != new.index:
        lines += config_differences(old.index, new.index)
    for name in sorted(old.inputs.keys() | new.inputs.keys()):
        if old.inputs.get(name) != new.inputs.get(name):
            lines.append(f"input {name} is a different one")
    return lines
