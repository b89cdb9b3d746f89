"""Files that parts of a mixture build, such as a search index: each part's in a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from erl_pipeline.environments.dependencies import BuiltFiles, Embedders
from erl_pipeline.environments.interface import Environment, Task, part_name
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.environments.mixture.tasks import part_of, parts_of


def building_settings(settings: MixtureConfig) -> MixtureConfig:
    """The parts that build files, each with the settings that its files depend on; other parts are left out,
    and all weights are 1."""
    parts = {
        name: settings.parts[name].model_copy(
            update={"environment": built.settings(part.settings), "weight": 1.0}
        )
        for name, part in parts_of(settings).items()
        if (built := part.plugin.dependencies.built_files) is not None
    }
    return settings.model_copy(update={"parts": parts})


def build(settings: MixtureConfig, folder: Path, embedders: Embedders) -> Mapping[str, int]:
    """Write the files of each part into the folder of its name; the counts begin with that name."""
    counts: dict[str, int] = {}
    for name, part in parts_of(settings).items():
        assert part.plugin.dependencies.built_files is not None
        own = folder / name
        own.mkdir()
        for what, count in part.plugin.dependencies.built_files.build(part.settings, own, embedders).items():
            counts[f"{name}_{what}"] = count
    return counts


def open_with_files(settings: MixtureConfig, task: Task, folder: Path, embedders: Embedders) -> Environment:
    """The environment of the part that a task is of, with the files of that part, if it has any."""
    part, own = part_of(parts_of(settings), task)
    built = part.plugin.dependencies.built_files
    if built is None:
        opened: Environment = part.plugin.open(part.settings, own)
        return opened
    return built.open(part.settings, own, folder / part_name(task.task_id), embedders)


BUILT_FILES = BuiltFiles(settings=building_settings, build=build, open=open_with_files)
