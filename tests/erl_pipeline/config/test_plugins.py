import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from erl_pipeline.config import plugins as module
from erl_pipeline.config.plugins import Group, Plugins, plugins
from erl_pipeline.environments.scorers import scorer_named
from storage.errors import ConfigError

RUNNER = """\
from typing import Literal
from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.plan.runner import RunnerPlugin

class Config(PluginSettings):
    type: Literal["{type}"] = "{type}"

class Runner(RunnerPlugin):
    packages = ()

RUNNER = Runner(settings=Config, run=print)
"""


class Site:
    """A folder of packages that are installed for one test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(
        self,
        distribution: str,
        entry: str,
        files: dict[str, str],
        version: str = "1.2",
        group: str = "runners",
    ) -> None:
        """Install a distribution with one entry point of a group, `NAME = MODULE:OBJECT`."""
        info = self._folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[erl_pipeline.{group}]\n{entry}\n")
        for name, text in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def runners(self) -> Plugins:
        """The runners that are found now."""
        return self.found("runners")

    def found(self, group: Group) -> Plugins:
        """The plug-ins of any group that are found now."""
        importlib.invalidate_caches()
        module._find.cache_clear()
        return plugins(group)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.partition(".")[0].startswith("sample"):
            del sys.modules[name]
    module._find.cache_clear()


def problem(found: Plugins, type_: str) -> str:
    """The reported problem of the one broken plug-in; the project's own plug-ins are found, too."""
    assert {"in_process", "prefect"} <= found.found.keys()
    [broken] = found.broken
    assert broken.type == type_
    assert broken.distribution == "sample-runner"
    return broken.problem


def test_a_plug_in_is_found_with_its_package_and_version(site: Site) -> None:
    site.install(
        "sample-runner", "far = sample.parts.run:RUNNER", {"sample/parts/run.py": RUNNER.format(type="far")}
    )
    far = site.runners()["far"]
    assert (far.distribution, far.version, far.target) == ("sample-runner", "1.2", "sample.parts.run:RUNNER")
    assert far.settings.model_fields.keys() == {"type"}


def test_the_code_of_a_plug_in_is_its_whole_top_package_and_what_it_names(site: Site) -> None:
    text = RUNNER.format(type="far").replace("packages = ()", "packages = ('json',)")
    site.install(
        "sample-runner",
        "far = sample.parts.run:RUNNER",
        {"sample/__init__.py": "", "sample/parts/run.py": text},
    )
    assert site.runners()["far"].packages == ("sample", "json")
    # It is the only package of the project itself: all others have versions.
    assert site.runners()["prefect"].packages == ("flows.runner",)


def test_in_a_namespace_it_is_the_first_package_that_has_sources(site: Site) -> None:
    files = {"sample_space/runner/__init__.py": "", "sample_space/runner/run.py": RUNNER.format(type="far")}
    site.install("sample-runner", "far = sample_space.runner.run:RUNNER", files)
    assert site.runners()["far"].packages == ("sample_space.runner",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "import no_such_module",
            "its import fails with ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("RUNNER = ", "its import fails with SyntaxError"),
        ("raise SystemExit('no')", "its import fails with SystemExit: no"),
        ("", "its import fails with AttributeError"),
        ("RUNNER = 1", "sample_runner:RUNNER is no RunnerPlugin (erl_pipeline.plan.runner)"),
        (RUNNER.replace(", run=print", ""), "missing 1 required positional argument: 'run'"),
        (RUNNER.replace("(PluginSettings)", ""), "is no subclass of erl_pipeline.config.base.PluginSettings"),
        (RUNNER.replace("(PluginSettings)", "(Settings)"), "is no subclass of"),
        (
            RUNNER.replace('type: Literal["{type}"]', "type: str"),
            'Config needs a field `type: Literal["..."]`',
        ),
        (RUNNER.replace('Literal["{type}"]', 'Literal["{type}", "x"]'), "Config needs a field `type:"),
        (
            RUNNER.replace("{type}", "near"),
            "its entry point is named 'far', but its settings have type 'near'",
        ),
        (
            RUNNER.replace("packages = ()", "packages = ('no_such.x',)"),
            "packages names no_such.x, which is not installed",
        ),
    ],
)
def test_a_broken_plug_in_is_named_and_nothing_else_is_affected(site: Site, text: str, told: str) -> None:
    text = text.replace("{type}", "far")
    site.install("sample-runner", "far = sample_runner:RUNNER", {"sample_runner.py": text})
    found = site.runners()
    assert told in problem(found, "far")
    with pytest.raises(
        ConfigError, match=r"far of package sample-runner cannot be used: .*`erl-pipeline plugins`"
    ):
        found["far"]
    assert found["in_process"].distribution == "erl-pipeline"


def test_a_type_of_the_project_cannot_be_taken(site: Site) -> None:
    text = RUNNER.format(type="prefect")
    # Names before and after the project's in the alphabet: plug-ins are not ordered by these names.
    site.install("sample-runner", "prefect = sample_runner:RUNNER", {"sample_runner.py": text})
    found = site.runners()
    assert problem(found, "prefect") == "its type 'prefect' is taken by package erl-pipeline"
    assert found["prefect"].distribution == "erl-pipeline"
    found.require_usable("prefect")


def test_of_two_foreign_packages_the_first_by_name_has_the_type(site: Site) -> None:
    text = RUNNER.format(type="far")
    site.install("sample-runner", "far = sample_runner:RUNNER", {"sample_runner.py": text})
    site.install("a-runner", "far = sample_first:RUNNER", {"sample_first.py": text})
    found = site.runners()
    assert problem(found, "far") == "its type 'far' is taken by package a-runner"
    assert found["far"].distribution == "a-runner"


def test_an_unknown_type_is_answered_with_those_that_there_are(site: Site) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such type of runners; there are in_process, prefect"):
        site.runners()["nowhere"]


SCORER = """\
from erl_pipeline.environments.scorers import Scorer

def plain(answer, payload):
    return 0.5

needy = Scorer(plain, packages=("sample_absent",), install="pip install 'sample[all]'")
"""


def test_a_plain_function_is_a_scorer_and_its_code_is_that_of_its_package(site: Site) -> None:
    site.install("sample", "half = sample_scorers:plain", {"sample_scorers.py": SCORER}, group="scorers")
    found = site.found("scorers")
    assert {"contains", "exact", "f1", "half", "numeric"} <= found.found.keys()
    assert found["half"].packages == ("sample_scorers",)
    assert scorer_named("half")("x", {}) == 0.5
    environment = plugins("environments")["questions"]
    own = (
        "erl_pipeline.environments.questions",
        "erl_pipeline.environments.single_turn",
        "erl_pipeline.environments.tasks",
    )
    half = environment.settings.model_validate({"type": "questions", "scorer": "half"})
    assert environment.packages_for(half) == (*own, "sample_scorers")
    math = environment.settings.model_validate({"type": "questions", "scorer": "math"})
    assert environment.packages_for(math) == (*own, "erl_pipeline.environments.scorers", "math_verify")

    agent = plugins("environments")["agent"]
    scored = agent.settings.model_validate({"type": "agent", "reward": "scorer", "scorer": "half"})
    assert "sample_scorers" in agent.packages_for(scored)
    assert "sample_scorers" not in agent.packages_for(scored.model_copy(update={"reward": "report"}))


@pytest.mark.parametrize(
    ("function", "package"),
    [
        # All that a function may import, such as `json.decoder`, is in its package.
        ("json.tool:main", "json"),
        ("nowhere.agent:solve", "nowhere.agent"),
    ],
)
def test_the_code_of_an_agents_function_is_its_whole_package(function: str, package: str) -> None:
    agent = plugins("environments")["agent"]
    settings = agent.settings.model_validate({"type": "agent", "function": function})
    assert agent.packages_for(settings)[-1] == package


def test_a_scorer_whose_libraries_are_missing_says_how_to_install_them(site: Site) -> None:
    site.install("sample", "needy = sample_scorers:needy", {"sample_scorers.py": SCORER}, group="scorers")
    told = "which is not installed: pip install 'sample\\[all\\]'"
    with pytest.raises(ConfigError, match=told):
        site.found("scorers")["needy"]
    settings = plugins("environments")["questions"].settings
    with pytest.raises(ValidationError, match=told):
        settings.model_validate({"type": "questions", "scorer": "needy"})


def test_a_scorer_that_cannot_be_called_is_broken(site: Site) -> None:
    site.install(
        "sample", "text = sample_scorers:__doc__", {"sample_scorers.py": '"""A text."""'}, group="scorers"
    )
    [broken] = site.found("scorers").broken
    assert broken.problem == "sample_scorers:__doc__ is no function"
