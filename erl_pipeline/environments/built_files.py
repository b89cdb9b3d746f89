"""Files that an environment reads while it is played, and that are too slow to make for each episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.config.base import PluginSettings
    from erl_pipeline.environments.interface import Environment, Task
    from storage.memory.embedder import Embedder

Embedders = Callable[[str], "Embedder"]
"""A model that embeds texts, by its name; an environment loads none by itself."""


@dataclass(frozen=True)
class BuiltFiles:
    """Files such as a search index: built once, kept as an artifact, and shared by all runs with the same
    settings of it, whatever their tasks and seeds are."""

    settings: Callable[[Any], PluginSettings]
    """Of the environment's settings those that the files follow from, all others at their defaults."""
    build: Callable[[Any, Path, Embedders], Mapping[str, int]]
    """Writes the files into an empty folder; returns counts of what is in them. Given are the settings above,
    with the paths of the files they name. Raises `InputError` for bad files."""
    open: Callable[[Any, Task, Path, Embedders], Environment]
    """As `EnvironmentPlugin.open`, with the folder that was built, in which nothing may be changed."""
