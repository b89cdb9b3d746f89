"""An environment that is ready for attempts outside a run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.interface import EnvironmentPlugin


def require_files(config: RunConfig) -> None:
    """Raise InputError for a file of the environment that cannot be read. It says where it was looked for."""
    from erl_pipeline.plan.sources import environment_sources

    environment_sources(config)


@contextmanager
def ready_environment(config: RunConfig) -> Iterator[EnvironmentPlugin[Any]]:
    """The environment of a configuration, inside this context. Files that it needs built, such as a search
    index, are built in a temporary folder."""
    from erl_pipeline.config.plugins.installed import plugins

    plugin: EnvironmentPlugin[Any] = plugins("environments")[config.environment.type].value
    if plugin.built_files_of(config.environment) is None:
        yield plugin
        return
    from erl_pipeline.plan.resources import Resources, WorkerSettings
    from erl_pipeline.stages.tasks.build_environment_files import ready_to_open

    print(f"Building what environment {config.environment.type} reads ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="erl-env-") as folder:
        files = Path(folder) / "files"
        files.mkdir()
        worker = WorkerSettings(folder, config.name, config.resources.threads)
        with Resources(worker) as resources:
            yield ready_to_open(plugin, config.environment, resources, files)
