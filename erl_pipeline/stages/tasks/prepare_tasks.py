"""The stage that fixes a run's tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings, with_settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import EnvironmentPlugin, MixturePart, Task
from erl_pipeline.plan.stage import Resources, Stage, StageCall, StageResult
from erl_pipeline.stages.names import HELD_OUT, TRAINING, WEIGHTS
from erl_pipeline.stages.tasks.held_out import KeptApart, refuse_held_out
from storage.artifacts.artifact import Artifact
from storage.errors import InputError
from storage.texts import StorableTexts

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources


class TaskSettings(Settings):
    """What the tasks depend on."""

    environment: SerializeAsAny[PluginSettings]
    """Without the settings that name files; `files` has the digests of those files."""
    files: dict[str, str]
    """Setting that names a file -> SHA-256 of the file."""
    held_out: int
    seed: int
    """The run's seed, which chooses what is hidden from the policy."""


def environment_identity(config: RunConfig) -> PluginSettings:
    """The environment's settings as recipes hold them: the files they name are known by their content."""
    plugin = plugins("environments")[config.environment.type].value
    return without_files(plugin, config.environment)


def without_files(plugin: EnvironmentPlugin[Any], settings: PluginSettings) -> PluginSettings:
    """The settings, without those that name files."""
    return with_settings(settings, dict.fromkeys(plugin.dependencies.files(settings)))


def digests(plugin: EnvironmentPlugin[Any], settings: PluginSettings, sources: Sources) -> dict[str, str]:
    """Setting that names a file -> SHA-256 of the file."""
    return {name: sources.files[str(path)] for name, path in plugin.dependencies.files(settings).items()}


def _slice(config: RunConfig, sources: Sources) -> TaskSettings:
    plugin = plugins("environments")[config.environment.type].value
    return TaskSettings(
        environment=environment_identity(config),
        files=digests(plugin, config.environment, sources),
        held_out=config.evaluation.tasks,
        seed=config.seed,
    )


def _compute(call: StageCall[TaskSettings]) -> StageResult:
    settings = call.settings
    plugin, environment = located_environment(call)
    texts = StorableTexts()
    training = storable_tasks(plugin.training_tasks(environment, settings.seed), texts)
    held_out = storable_tasks(plugin.held_out_tasks(environment, settings.seed, settings.held_out), texts)
    refuse_held_out(training, KeptApart(plugin, environment, settings.seed, held_out))
    _write(call.folder, TRAINING, training)
    _write(call.folder, HELD_OUT, held_out)
    write_weights(call.folder, plugin.parts(environment))
    counters = {"training_tasks": len(training), "held_out_tasks": len(held_out)}
    return StageResult(counters={**counters, **texts.counters()})


PREPARE_TASKS = Stage(
    name="prepare_tasks",
    version=3,
    output="tasks",
    settings=TaskSettings,
    compute=_compute,
    slice=_slice,
    code=("environment",),
)


class RequestedTaskSettings(TaskSettings):
    """The settings of tasks that somebody wants a checkpoint evaluated on."""

    task_file: str | None
    """SHA-256 of a file that holds them; None for generated held-out tasks."""


def plan_requested_tasks(planner: Planner, task_file: str | None, inputs: Mapping[str, str]) -> str:
    """Plan tasks for an evaluation on request: those of a file, by its SHA-256, or as many held-out ones as
    configured. `inputs` are the files that they are opened with, if any."""
    base = planner.settings(PREPARE_TASKS)
    settings = RequestedTaskSettings(
        environment=base.environment,
        files=base.files,
        held_out=base.held_out,
        seed=base.seed,
        task_file=task_file,
    )
    return planner.add(
        REQUESTED_TASKS, inputs, iteration=None, settings=settings, key=task_file or "generated"
    )


def _requested(call: StageCall[RequestedTaskSettings]) -> StageResult:
    settings = call.settings
    plugin, environment = located_environment(call)
    if settings.task_file is None:
        tasks = plugin.held_out_tasks(environment, settings.seed, settings.held_out)
    elif plugin.splits.from_file is None:
        raise InputError(f"environment {environment.type} reads no task files; leave --tasks at generated")
    else:
        path = unchanged_file(call.locations[settings.task_file], settings.task_file, "the task file")
        tasks = plugin.splits.from_file(environment, settings.seed, path)
    texts = StorableTexts()
    _write(call.folder, HELD_OUT, storable_tasks(tasks, texts))
    return StageResult(counters={"held_out_tasks": len(tasks), **texts.counters()})


REQUESTED_TASKS = Stage(
    name="requested_tasks",
    version=2,
    output="tasks",
    settings=RequestedTaskSettings,
    compute=_requested,
    code=("environment",),
)


def storable_tasks(tasks: Sequence[Task], texts: StorableTexts) -> list[Task]:
    """The tasks with all of their texts storable.

    Raises `InputError` for a payload that is nested too deeply, and for two tasks that then have the same id.
    """
    stored = [_storable(task, texts) for task in tasks]
    ids: dict[str, str] = {}
    for before, after in zip(tasks, stored, strict=True):
        if ids.setdefault(after.task_id, before.task_id) != before.task_id:
            raise InputError(
                f"two tasks have the id {after.task_id!r} once halves of characters in it are replaced; give "
                "them other ids"
            )
    return stored


def _storable(task: Task, texts: StorableTexts) -> Task:
    task_id = texts.text(task.task_id)
    try:
        payload = texts.value(task.payload)
    except ValueError as error:
        raise InputError(f"task {task_id!r}: its payload cannot be stored: {error}") from error
    return replace(task, task_id=task_id, task_type=texts.text(task.task_type), payload=payload)


def _write(folder: Path, name: str, tasks: Sequence[Task]) -> None:
    (folder / name).write_text("".join(task_line(task) + "\n" for task in tasks), encoding="utf-8")


def located(
    environment: PluginSettings, files: Mapping[str, str], locations: Mapping[str, str]
) -> PluginSettings:
    """The environment's settings with the paths of its files on this machine.

    Raises InputError when a file no longer has the content that the plan was made with.
    """
    paths: dict[str, str] = {}
    for name, sha256 in files.items():
        paths[name] = str(unchanged_file(locations[sha256], sha256, f"environment.{name}"))
    return with_settings(environment, paths)


def located_environment(call: StageCall[Any]) -> tuple[EnvironmentPlugin[Any], PluginSettings]:
    """The environment in a stage's settings (`environment` and `files`), and its settings with the paths of
    its files on this machine. Raises what `located` raises."""
    environment = located(call.settings.environment, call.settings.files, call.locations)
    return plugins("environments")[environment.type].value, environment


def unchanged_file(path: str, sha256: str, name: str) -> Path:
    """The path of a file with the content that the plan was made with. Raises `InputError` where the file has
    changed; `name` is the setting that names it."""
    if hashlib.sha256(Path(path).read_bytes()).hexdigest() != sha256:
        raise InputError(f"{name}: {path} has changed since the run was planned; start it again")
    return Path(path)


def read_tasks(tasks: Artifact, name: str, resources: Resources) -> Sequence[Task]:
    """The training or held-out tasks of a committed task set; read once by each worker."""

    def read() -> Sequence[Task]:
        lines = tasks.path(name).read_text(encoding="utf-8").splitlines()
        return tuple(Task(**json.loads(line)) for line in lines)

    return resources.keep(f"tasks {tasks.manifest.artifact_id} {name}", read)


def write_weights(folder: Path, parts: Mapping[str, MixturePart]) -> None:
    """Write the weights of a mixture's parts; nothing without a mixture."""
    if parts:
        weights = {name: part.weight for name, part in parts.items()}
        (folder / WEIGHTS).write_text(json.dumps(weights, indent=1) + "\n", encoding="utf-8")


def read_weights(tasks: Artifact) -> dict[str, float]:
    """The weights of a mixture's parts, in its order; empty where the tasks are of one environment."""
    if all(file.path != WEIGHTS for file in tasks.manifest.files):
        return {}
    weights: dict[str, float] = json.loads(tasks.path(WEIGHTS).read_text(encoding="utf-8"))
    return weights


def task_line(task: Task) -> str:
    """A task as a line of JSON; equal for equal tasks."""
    return json.dumps(
        {
            "task_id": task.task_id,
            "task_type": task.task_type,
            "environment": task.environment,
            "payload": dict(task.payload),
        },
        sort_keys=True,
    )
