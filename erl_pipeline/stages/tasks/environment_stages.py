"""The stages of an environment itself: what it reads while it is played, such as a search index, and its
examination, whose artifact stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings, with_settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Resources, Stage, StageCall, StageResult
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS, TaskSettings, located_environment
from storage.artifacts.artifact import Artifact
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.interface import Embedders
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.memory.entries import Embedder

BUILT_FILES = "built_files"
"""Name of the input of a task set that holds the files with which its tasks are opened."""

_FOLDER = "files"


class BuiltFilesSettings(Settings):
    """What the files depend on."""

    environment: SerializeAsAny[PluginSettings]
    """The settings that `BuiltFiles.settings` chooses, without those that name files."""
    files: dict[str, str]
    """Setting that names a file -> SHA-256 of the file."""


def built_inputs(planner: Planner) -> dict[str, str]:
    """Inputs of a task set: the files that its environment builds, whose stage is added to the plan; none
    where it builds no files."""
    environment = planner.config.environment
    if plugins("environments")[environment.type].value.built_files_of(environment) is None:
        return {}
    return {BUILT_FILES: planner.add(BUILD_ENVIRONMENT_FILES, {}, iteration=None)}


def built_folder(inputs: Mapping[str, Artifact]) -> Path | None:
    """The folder of the files that a stage's inputs hold; None where they hold none."""
    return inputs[BUILT_FILES].path(_FOLDER) if BUILT_FILES in inputs else None


def with_built_files(
    plugin: EnvironmentPlugin[Any], tasks: Artifact | None, resources: Resources
) -> EnvironmentPlugin[Any]:
    """The environment, which opens the tasks of a task set with the files that the set was made with.

    Raises StoreError where these files are damaged, InputError where they are gone.
    """
    if tasks is None or BUILT_FILES not in tasks.manifest.inputs:
        return plugin
    built = resources.store.open(tasks.manifest.inputs[BUILT_FILES])
    return opened_with(plugin, built.path(_FOLDER), lambda model: _query_embedder(resources, model))


def opened_with(plugin: EnvironmentPlugin[Any], folder: Path, embedders: Embedders) -> EnvironmentPlugin[Any]:
    """The environment, whose `open` uses the files in a folder."""
    built = plugin.dependencies.built_files
    assert built is not None
    return replace(plugin, open=lambda settings, task: built.open(settings, task, folder, embedders))


def ready_to_open(
    plugin: EnvironmentPlugin[Any], settings: PluginSettings, resources: Resources, folder: Path
) -> EnvironmentPlugin[Any]:
    """The environment for attempts outside a run: what it needs is built in an empty folder first.

    Raises what `BuiltFiles.build` raises.
    """
    built = plugin.built_files_of(settings)
    if built is None:
        return plugin
    built.build(built.settings(settings), folder, _passage_embedder)
    return opened_with(plugin, folder, lambda model: _query_embedder(resources, model))


def _slice(config: RunConfig, sources: Sources) -> BuiltFilesSettings:
    plugin = plugins("environments")[config.environment.type].value
    chosen = plugin.dependencies.built_files.settings(config.environment)
    files: Mapping[str, Path] = plugin.dependencies.files(chosen)
    return BuiltFilesSettings(
        environment=with_settings(chosen, dict.fromkeys(files)),
        files={name: sources.files[str(path)] for name, path in files.items()},
    )


def _build(call: StageCall[BuiltFilesSettings]) -> StageResult:
    plugin, environment = located_environment(call)
    built = plugin.dependencies.built_files
    assert built is not None
    folder = call.folder / _FOLDER
    folder.mkdir()
    counters = built.build(environment, folder, _passage_embedder)
    # An index may name its files as it likes; the environment must keep its results the same.
    return StageResult(counters=dict(counters), determinism="approximate")


def _passage_embedder(model: str) -> Embedder:
    from erl_pipeline.policies.embedding import SentenceEmbedder

    return SentenceEmbedder(model)


def _query_embedder(resources: Resources, model: str) -> Embedder:
    """Computes each text by itself: queries come one at a time."""
    from erl_pipeline.policies.embedding import SentenceEmbedder

    return resources.keep(f"query embedder {model}", lambda: SentenceEmbedder(model, batch_tokens=1))


BUILD_ENVIRONMENT_FILES = Stage(
    name="build_environment_files",
    version=2,
    output="environment_files",
    settings=BuiltFilesSettings,
    compute=_build,
    slice=_slice,
    code=("environment",),
    needs="sampling",
)

QUALIFICATION = "qualification.json"


class QualificationSettings(TaskSettings):
    """What an examination depends on; `held_out` is the number of held-out tasks in evaluations."""

    tasks: int
    """Tasks that are attempted."""
    answers: int
    """Hostile answers, over all tasks together."""
    step_seconds: float
    """Deadline of each call of the environment, in seconds."""


def plan_qualification(planner: Planner, tasks: int, answers: int) -> str:
    """Plan the examination of a configuration's environment, with the configuration's seed."""
    base = planner.settings(PREPARE_TASKS)
    settings = QualificationSettings(
        environment=base.environment,
        files=base.files,
        held_out=base.held_out,
        seed=base.seed,
        tasks=tasks,
        answers=answers,
        step_seconds=planner.config.rollouts.step_seconds,
    )
    seed = derive_seed(base.seed, QUALIFY_ENVIRONMENT.name)
    inputs = built_inputs(planner)
    return planner.add(QUALIFY_ENVIRONMENT, inputs, iteration=None, settings=settings, seed=seed)


def _qualify(call: StageCall[QualificationSettings]) -> StageResult:
    # Imported here, because both read the configuration, which imports this module through the methods.
    from erl_pipeline.qualification.examination import examine
    from erl_pipeline.qualification.served_environment import EnvironmentSpec

    settings = call.settings
    plugin, environment = located_environment(call)
    call.progress.begin(settings.tasks + settings.answers, "tasks and answers")
    found = examine(
        EnvironmentSpec(
            type=environment.type,
            settings=environment.model_dump(mode="json"),
            seed=settings.seed,
            held_out=settings.held_out,
            step_seconds=settings.step_seconds,
            built=str(built_folder(call.inputs) or ""),
        ),
        settings.tasks,
        settings.answers,
        advance=call.progress.advance,
        stopped=call.progress.raise_if_stopped,
    )
    (call.folder / QUALIFICATION).write_text(found.qualification.document(), encoding="utf-8")
    checks = found.qualification.checks
    return StageResult(
        counters={
            "tasks": found.tasks,
            "hostile_answers": found.answers,
            "checks_passed": sum(check.verdict == "passed" for check in checks),
            "checks_failed": sum(check.verdict == "failed" for check in checks),
        },
        metrics={"mean_call_seconds": found.mean_seconds, "slowest_call_seconds": found.slowest_seconds},
        determinism="bytes" if plugin.timing_of(environment) == "instant" else "approximate",
    )


QUALIFY_ENVIRONMENT = Stage(
    name="qualify_environment",
    version=3,
    output="qualification",
    settings=QualificationSettings,
    compute=_qualify,
    code=("environment", "examination"),
)
