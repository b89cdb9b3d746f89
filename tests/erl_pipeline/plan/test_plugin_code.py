"""Fingerprints of plug-ins, on edited copies of two of the project's own."""

from __future__ import annotations

import shutil
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from erl_pipeline.config.plugins import Group, plugins
from erl_pipeline.plan.plugin_code import plugin_fingerprints

LAKE, ERL = "erl_pipeline.environments.frozen_lake", "erl_pipeline.methods.erl"


def copied(package: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a package, in which its sources are found."""
    module = sys.modules[package]
    assert module.__file__ is not None
    copy = folder / "copy"
    shutil.copytree(Path(module.__file__).parent, copy)
    spec = spec_from_file_location(package, copy / "__init__.py", submodule_search_locations=[str(copy)])
    monkeypatch.setattr(module, "__spec__", spec)
    return copy


@pytest.mark.parametrize(
    ("group", "type_", "file", "old", "new", "changes"),
    [
        ("environments", "frozen_lake", "game.py", "× against the edge", "× at the edge", False),
        (
            "environments",
            "frozen_lake",
            "tasks.py",
            "best_directions(cell)[0]",
            "best_directions(cell)[-1]",
            False,
        ),
        ("environments", "frozen_lake", "game.py", '"""The rules of', '"""Rules of', False),
        ("environments", "frozen_lake", "__init__.py", "test_boards: 256", "test_boards: 99", False),
        (
            "environments",
            "frozen_lake",
            "__init__.py",
            "assert settings.prompts",
            "assert 1, settings.prompts",
            True,
        ),
        (
            "environments",
            "frozen_lake",
            "game.py",
            "return grid.GridEnvironment(",
            "return 1 and grid.GridEnvironment(",
            True,
        ),
        ("environments", "frozen_lake", "game.py", "without success", "badly", True),
        ("environments", "frozen_lake", "tasks.py", "stream.shuffle(cells)", "cells.reverse()", True),
        ("environments", "frozen_lake", "tiny.py", "directions(state)", "directions(state)[:1]", True),
        ("methods", "erl", "plan.py", '"2nd"', '"second"', False),
        ("methods", "erl", "plan.py", "remember and settings.memory", "settings.memory", False),
        ("methods", "erl", "episode.py", '"""Play one episode.', '"""Play an episode.', False),
        ("methods", "erl", "episode.py", "max_revisions + 1", "max_revisions + 2", True),
        ("methods", "erl", "episode.py", "def judge_prompt(", "def judge_prompt(more, ", True),
        ("methods", "erl", "__init__.py", "own.temperature or", "2 * own.temperature or", True),
    ],
)
def test_only_edits_of_what_gives_bytes_change_a_fingerprint(
    group: Group,
    type_: str,
    file: str,
    old: str,
    new: str,
    changes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = plugins(group)[type_]
    before = plugin_fingerprints([plugin])
    path = copied(plugin.packages[0], tmp_path, monkeypatch) / file
    assert plugin_fingerprints([plugin]) == before, "where the files are changes nothing"
    source = path.read_text(encoding="utf-8")
    assert old in source
    path.write_text(source.replace(old, new), encoding="utf-8")
    after = plugin_fingerprints([plugin])
    changed = [package for package in before if before[package] != after[package]]
    assert changed == ([plugin.packages[0]] if changes else [])


def test_what_games_share_counts_for_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "erl_pipeline.environments.grid_games"
    games = [plugins("environments")[name] for name in ("frozen_lake", "sokoban")]
    before = [plugin_fingerprints([game]) for game in games]
    copy = copied(package, tmp_path, monkeypatch)
    shown = copy / "game.py"
    shown.write_text(
        shown.read_text(encoding="utf-8").replace("game.step(text).done", "game.step(text).reward")
    )
    assert [plugin_fingerprints([game]) for game in games] == before
    rules = copy / "game.py"
    rules.write_text(rules.read_text(encoding="utf-8").replace("reward=result.reward", "reward=1.0"))
    for game, earlier in zip(games, before, strict=True):
        after = plugin_fingerprints([game])
        assert {name for name in earlier if after[name] != earlier[name]} == {package}


def test_a_new_data_file_counts_and_an_examination_counts_gold_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = plugins("environments")["frozen_lake"]
    before, examined = plugin_fingerprints([lake]), plugin_fingerprints([lake], whole=True)
    copy = copied(LAKE, tmp_path, monkeypatch)
    path = copy / "tasks.py"
    path.write_text(
        path.read_text(encoding="utf-8").replace("is longer", "is much longer").replace("[0]", "[-1]")
    )
    assert plugin_fingerprints([lake]) == before
    assert plugin_fingerprints([lake], whole=True) != examined
    (copy / "words.txt").write_text("left\n")
    assert plugin_fingerprints([lake])[LAKE] != before[LAKE]


def test_a_fingerprint_begins_with_the_number_of_its_scheme() -> None:
    found = plugin_fingerprints([plugins("methods")["erl"]])
    assert list(found) == [ERL, "erl_pipeline.environments.prompt_format"]
    assert all(each.startswith("2-") for each in found.values())


def test_a_package_of_another_project_counts_whole() -> None:
    """`math_verify` is a library that a scorer names; its own docstrings count too."""
    from erl_pipeline.plan.fingerprint import package_fingerprint

    scorer = next(each for each in plugins("scorers").found.values() if "math_verify" in each.packages)
    assert plugin_fingerprints([scorer])["math_verify"] == f"2-{package_fingerprint('math_verify')}"
