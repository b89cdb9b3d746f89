"""Functions that are agents: where they are found, and what is told where they are not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.agent.functions import function_named
from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.plan.fingerprint import package_fingerprint
from storage.errors import ConfigError


@pytest.fixture
def folder_of_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that commands are called in; afterwards nothing is found there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    return tmp_path


@pytest.fixture
def installed(folder_of_call: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder, in which Python looks first."""
    folder = folder_of_call / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import json\n\njson.loads('[')\n", r"JSONDecodeError: .*agent_that_fails\.py, line 3\)$"),
        ("import sys\n\nsys.exit(0)\n", r"SystemExit: 0 \(.*agent_that_fails\.py, line 3\)$"),
        ("x = {}['key']\n", r"KeyError: 'key' \(.*agent_that_fails\.py, line 1\)$"),
        ("x = = 1\n", r"SyntaxError: invalid syntax \(agent_that_fails\.py, line 1\)$"),
    ],
)
def test_a_function_whose_module_fails_is_an_error_with_its_place(
    folder_of_call: Path, code: str, said: str
) -> None:
    (folder_of_call / "agent_that_fails.py").write_text(code)
    with pytest.raises(ConfigError, match=said):
        function_named("agent_that_fails:solve")


def test_a_folder_in_the_folder_of_the_call_is_no_library(folder_of_call: Path) -> None:
    """As the one that W&B writes into, where W&B is not installed."""
    code = "import tools_of_agent\n\ndef solve(task):\n    import wandb_of_here\n"
    for name in ("agents_of_here", "wandb_of_here"):
        (folder_of_call / name).mkdir()
    (folder_of_call / "agents_of_here" / "play.py").write_text(code)
    (folder_of_call / "tools_of_agent.py").write_text("")
    solve: Any = function_named("agents_of_here.play:solve")
    with pytest.raises(ModuleNotFoundError, match="wandb_of_here"):
        solve(None)


def test_a_folder_of_modules_in_the_folder_of_the_call_is_a_package(folder_of_call: Path) -> None:
    for name in ("agents_that_share", "shared_of_here"):
        (folder_of_call / name).mkdir()
    (folder_of_call / "agents_that_share" / "play.py").write_text("from shared_of_here.text import clean\n")
    (folder_of_call / "shared_of_here" / "text.py").write_text("def clean(task): return 1\n")
    clean: Any = function_named("agents_that_share.play:clean")
    assert clean(None) == 1


def test_a_package_without_init_can_be_partly_in_the_folder_of_the_call(
    folder_of_call: Path, installed: Path
) -> None:
    for folder in (folder_of_call, installed):
        (folder / "parted_agents").mkdir()
    (installed / "parted_agents" / "tools.py").write_text("LIMIT = 2\n")
    mine = folder_of_call / "parted_agents" / "mine.py"
    mine.write_text("from parted_agents.tools import LIMIT\n\ndef solve(task): return LIMIT\n")
    solve: Any = function_named("parted_agents.mine:solve")
    assert solve(None) == 2
    before = package_fingerprint.__wrapped__("parted_agents")
    mine.write_text("def solve(task): return 3\n")
    assert package_fingerprint.__wrapped__("parted_agents") != before


def test_an_installed_package_goes_before_a_folder_of_its_name_and_is_named(
    folder_of_call: Path, installed: Path
) -> None:
    for folder in (folder_of_call, installed):
        (folder / "taken_name").mkdir()
        (folder / "taken_name" / "run.py").write_text("")
    (installed / "taken_name" / "__init__.py").write_text("")
    (folder_of_call / "taken_name" / "mine.py").write_text("def solve(task): return 1\n")
    with pytest.raises(ConfigError, match=r"taken_name\.run \(.*/installed/taken_name/run\.py\) has no func"):
        function_named("taken_name.run:solve")
    with pytest.raises(ConfigError, match=r"\(taken_name is .*/installed/taken_name/__init__\.py\)"):
        function_named("taken_name.mine:solve")


def test_the_modules_beside_a_functions_module_count(folder_of_call: Path) -> None:
    package = folder_of_call / "my_agents"
    package.mkdir()
    (package / "play.py").write_text("from my_agents import tools\n")
    (package / "tools.py").write_text("LIMIT = 1\n")
    settings = AgentConfig(function="my_agents.play:solve")
    assert plugins("environments")["agent"].packages_for(settings)[-1] == "my_agents"
    before = package_fingerprint.__wrapped__("my_agents")
    (package / "notes.txt").write_text("no code")
    assert package_fingerprint.__wrapped__("my_agents") == before
    (package / "tools.py").write_text("LIMIT = 2\n")
    assert package_fingerprint.__wrapped__("my_agents") != before
