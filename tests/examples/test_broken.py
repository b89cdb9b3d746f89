"""Broken packages: each is named, is refused when a configuration uses it, and disturbs nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.installed import ROOT, Site

FROZEN_LAKE = ROOT / "configs" / "frozen_lake.yaml"
START = "from typing import Literal\nfrom erl_pipeline.config.base import PluginSettings\n"
SETTINGS = "class Config(PluginSettings):\n    type: Literal['{type}'] = '{type}'\n"
TASKS = "training_tasks=print, held_out_tasks=print, open=print"
PARTS = f"ENVIRONMENT = EnvironmentPlugin(settings=Config, {TASKS})\n"
WHOLE = START + "from erl_pipeline.environments.interface import EnvironmentPlugin\n" + SETTINGS + PARTS

BROKEN = {
    "unimportable": ("import a_package_that_is_not_there\n", "its import fails with ModuleNotFoundError"),
    "incomplete": (
        WHOLE.replace("{type}", "incomplete").replace(", open=print", ""),
        "__init__() missing 1 required positional argument: 'open'",
    ),
    "partless": (
        START + SETTINGS.replace("{type}", "partless") + "class ENVIRONMENT:\n    settings = Config\n",
        "broken_partless:ENVIRONMENT is no EnvironmentPlugin (erl_pipeline.environments.interface)",
    ),
    "unsettled": (
        WHOLE.replace("{type}", "unsettled").replace("(PluginSettings)", ""),
        "broken_unsettled:ENVIRONMENT.settings is no subclass of erl_pipeline.config.base.PluginSettings",
    ),
    "frozen_lake": (
        WHOLE.replace("{type}", "frozen_lake"),
        "its type 'frozen_lake' is taken by package erl-pipeline",
    ),
}
"""Type -> source of a package that claims it, and what is wrong with it."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All of them installed, each as a package of its own."""
    folder = tmp_path_factory.mktemp("broken")
    for type_, (source, _) in BROKEN.items():
        (folder / f"broken_{type_}.py").write_text(source)
        info = folder / f"broken_{type_}-3.2.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: broken-{type_}\nVersion: 3.2.1\n")
        (info / "entry_points.txt").write_text(
            f"[erl_pipeline.environments]\n{type_} = broken_{type_}:ENVIRONMENT\n"
        )
    return Site(folder)


def test_each_is_listed_with_its_package_and_what_is_wrong(broken: Site) -> None:
    listed = broken.erl_pipeline("plugins", "--json")
    assert listed.status == 0, listed.errors
    problems = {each["distribution"]: each for each in listed.json["broken"]}
    assert problems.keys() == {f"broken-{type_}" for type_ in BROKEN}
    for type_, (_, told) in BROKEN.items():
        assert problems[f"broken-{type_}"]["type"] == type_
        assert told in problems[f"broken-{type_}"]["problem"]
    assert {each["distribution"] for each in listed.json["plugins"]} == {"erl-pipeline"}


def test_a_configuration_that_asks_for_one_is_refused(broken: Site, tmp_path: Path) -> None:
    config = tmp_path / "asks.yaml"
    config.write_text("name: asks\niterations: 1\nenvironment: {type: unimportable}\npolicy: {type: tiny}\n")
    store = tmp_path / "store"
    asked = broken.erl_pipeline("train", config, "--store", store)
    assert asked.status == 2
    assert "unimportable of package broken-unimportable cannot be used: its import fails" in asked.errors
    assert "Traceback" not in asked.errors
    assert not store.exists()


def test_a_configuration_that_asks_for_none_is_not_affected(broken: Site) -> None:
    shown = broken.erl_pipeline("config", "show", FROZEN_LAKE)
    assert shown.status == 0, shown.errors
    assert "type: frozen_lake" in shown.output
