"""A stage sees only what is in its recipe, and planning imports none of the libraries that compute."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import StageJob, compute
from erl_pipeline.plan.stage import (
    Listener,
    Resources,
    Stage,
    StageCall,
    StageProgress,
    StageResult,
    WorkerSettings,
)
from storage.artifacts.recipe import Recipe
from tests.erl_pipeline.stages.settings_reads import settings_reads
from tests.stage_versions import find_stages

COMPUTING = ("torch", "transformers", "prefect", "lancedb", "vllm", "sentence_transformers")
TABLES = ("polars", "pyarrow")
EVERYTHING = """
import importlib, pkgutil, sys, typing
import erl_pipeline.config.loading, erl_pipeline.stages
from erl_pipeline.config.plugins import Group, plugins
for group in typing.get_args(Group):
    for plugin in plugins(group).found.values():
        for package in plugin.packages:
            importlib.import_module(package)
for module in pkgutil.iter_modules(erl_pipeline.stages.__path__, "erl_pipeline.stages."):
    importlib.import_module(module.name)
"""


class _Slice(Settings):
    seed_words: int


def _asks_for_more(call: StageCall[Any]) -> StageResult:
    return StageResult(counters={"words": call.settings.seed_words, "threads": call.settings.threads})


def test_a_stage_that_asks_for_a_setting_that_its_recipe_lacks_fails(tmp_path: Path) -> None:
    stage = Stage(name="count_words", version=1, output="table", settings=_Slice, compute=_asks_for_more)
    settings = _Slice(seed_words=2)
    recipe = Recipe(stage.name, stage.version, settings.model_dump(), {}, 0)
    planned = PlannedStage(stage, settings, recipe, None, "", recipe.artifact_id)
    worker = WorkerSettings(str(tmp_path), "run", threads=1)
    with Resources(worker) as resources:
        progress = StageProgress(planned.title, Listener(), resources.stop)
        with pytest.raises(AttributeError, match="threads"):
            compute(StageJob(planned, worker), resources, progress)
        assert resources.store.find(recipe.artifact_id, stage.name) is None


@pytest.mark.parametrize("stage", find_stages(), ids=lambda stage: f"{stage.name}-{stage.compute.__name__}")
def test_every_stage_asks_only_for_settings_of_its_recipe(stage: Stage[Any]) -> None:
    module = inspect.getmodule(stage.compute)
    assert module is not None
    tree = ast.parse(inspect.getsource(module))
    assert settings_reads(tree, stage.compute.__name__) <= stage.settings.model_fields.keys()


def _imported(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of these packages a fresh Python has imported after this code."""
    asked = f"{code}\nprint(*(name for name in {names!r} if name in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_stages_plug_ins_and_the_configuration_import_nothing_that_computes() -> None:
    assert _imported(EVERYTHING, COMPUTING) == []


def test_a_plan_needs_no_library_for_tables() -> None:
    assert _imported("import sys, erl_pipeline.runs.planning", COMPUTING + TABLES) == []
