"""What an environment depends on beside its own code and settings: files, packages, and what it builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from erl_pipeline.config.base import PluginSettings, SettingsT
from erl_pipeline.config.plugins import NO_BYTES

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Environment, Task
    from storage.memory.entries import Embedder

Embedders = Callable[[str], "Embedder"]
"""Gives the model that embeds texts, by its name; an environment loads none by itself."""


@dataclass(frozen=True)
class BuiltFiles:
    """Files such as a search index: built once, kept as an artifact, and shared by all runs with the same
    settings for them, whatever their tasks and seeds are."""

    settings: Callable[[Any], PluginSettings]
    """The environment's settings that the files depend on, all others at their defaults."""
    build: Callable[[Any, Path, Embedders], Mapping[str, int]]
    """Writes the files into an empty folder; returns counts of what is in them. Its first argument is the
    settings above, with the paths of the files that they name. Raises `InputError` for bad files."""
    open: Callable[[Any, Task, Path, Embedders], Environment]
    """As `EnvironmentPlugin.open`, with the folder that was built. It may change nothing in the folder."""


def _no_files(settings: Any) -> Mapping[str, Path]:
    return {}


def _no_packages(settings: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Dependencies(Generic[SettingsT]):
    """Files and packages that decide what happens; all of it is optional."""

    files: Callable[[SettingsT], Mapping[str, Path]] = _no_files
    """Setting that names a file -> that file. Identity has the file's digest instead of the setting."""
    built_files: BuiltFiles | None = None
    """Files that are built once and that episodes are opened with, by `built_files.open` instead of
    `EnvironmentPlugin.open`; None where there are none."""
    packages: tuple[str, ...] = field(default=(), metadata=NO_BYTES)
    """Further packages whose code decides what happens, such as a game's rules; its own always counts."""
    used_packages: Callable[[SettingsT], Sequence[str]] = field(default=_no_packages, metadata=NO_BYTES)
    """As `packages`, but for packages that depend on the settings, such as that of the scorer they name."""
    extra: str = field(default="", metadata=NO_BYTES)
    """The extra of its distribution that the environment needs, such as `reasoning-gym` for
    `pip install 'erl-pipeline[reasoning-gym]'`; `env list` says where it is missing. Empty for none."""
