from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_line.output import command


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "erl-pipeline"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    return program


def test_a_program_on_the_path_is_called_by_its_name(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    assert command(["memory", "search", "run", "two words"]) == "erl-pipeline memory search run 'two words'"


def test_a_program_elsewhere_is_called_as_it_was(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert command(["status", "run"]) == f"{installed} status run"
