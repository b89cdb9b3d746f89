from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.comparison.design import Arm, Given, read_comparison
from storage.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "comparison.yaml"
    path.write_text(text)
    return path


def test_a_file_names_its_base_and_its_arms(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "comparison:\n  base: ../small.yaml\n  settings: {environment.test_boards: 8}\n  baseline: b\n"
        "  arms:\n    a:\n    b: {method.memory: off}\n",
    )
    assert read_comparison(path) == Given(
        base=str(tmp_path.parent / "small.yaml"),
        overrides=("environment.test_boards=8",),
        arms=(Arm("a"), Arm("b", ("method.memory=false",))),
        baseline="b",
    )


def test_a_run_configuration_is_a_base_without_arms(tmp_path: Path) -> None:
    path = write(tmp_path, "name: small\niterations: 2\n")
    assert read_comparison(path) == Given(str(path), (), (), None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("comparison: {base: a.yaml, arms: {a: {}}, seeds: 3}", "line 1: seeds: unknown key"),
        ("comparison: {arms: {a: {}}}", "base: missing"),
        ("comparison: {base: a.yaml, arms: {}}", "arms: there is none"),
        ("comparison: {base: a.yaml, arms: {a: {seed: 3}}}", "arm a: seed cannot be set here"),
        ("comparison: {base: a.yaml, arms: {a: 3}}", "arms"),
        (
            "comparison: {base: a.yaml, arms: {a: {}}}\nseed: 3",
            "seed: not allowed beside `comparison:`",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_comparison(write(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; ready comparisons are in configs/comparisons/"):
        read_comparison(tmp_path / "none.yaml")
