"""What a wheel contains: every package, and all other files that the program reads."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("storage", "erl_pipeline", "flows", "command_line")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The file names in a wheel that is built only from files that git tracks."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in _files():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    words = [sys.executable, "-c", _BUILD, str(built)]
    made = subprocess.run(words, cwd=source, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (wheel,) = built.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


_BUILD = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"


def _files() -> list[str]:
    """The files of the wheel's sources that git tracks."""
    kept = ["pyproject.toml", "README.md", "LICENSE", *PACKAGES]
    listed = subprocess.run(["git", "ls-files", *kept], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_all_files_of_the_packages_are_in_the_wheel(names: set[str]) -> None:
    missing = [name for name in _files() if name.startswith(PACKAGES) and name not in names]
    assert not missing


def test_nothing_else_is_in_the_wheel(names: set[str]) -> None:
    folders = {name.partition("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == set(PACKAGES)


def test_the_licence_is_in_the_wheel(names: set[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in names)
