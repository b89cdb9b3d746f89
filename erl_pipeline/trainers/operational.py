"""The operational settings of a trainer whose stages are all computed on this machine."""

from __future__ import annotations

from typing import Any

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.plugins import operational_part, plugins


def operational_part_here(trainer: PluginSettings) -> dict[str, Any]:
    """As `operational_part`, but nodes that a runner would have to find are left out, so all of the trainer's
    processes are here."""
    if plugins("trainers")[trainer.type].value.nodes_to_find(trainer) is not None:
        return {}
    return operational_part("trainers", trainer)
