from __future__ import annotations

import os
from pathlib import Path

import pytest

from command_line.doctor.checks import check_store
from storage.runs.run import RunStore


def test_a_store_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).create("one", {})
    before = sorted(tmp_path.rglob("*"))
    runs, writing, locks, disk = check_store(str(tmp_path))
    assert runs.found == f"{tmp_path}: 1 run, one"
    assert (writing.verdict, locks.verdict) == ("ok", "ok")
    assert disk.found.endswith(f"free at {tmp_path}")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_store_that_does_not_exist_yet_is_not_made(tmp_path: Path) -> None:
    findings = check_store(str(tmp_path / "new" / "store"))
    assert findings[0].found.endswith("no run yet")
    assert {finding.verdict for finding in findings[:3]} == {"ok"}
    assert list(tmp_path.iterdir()) == []


def test_an_object_store_is_written_too() -> None:
    findings = check_store("memory://doctor")
    assert [finding.verdict for finding in findings[:3]] == ["ok", "ok", "ok"]


def test_a_store_of_an_unknown_kind_is_a_problem() -> None:
    (finding,) = check_store("nowhere://bucket")
    assert finding.verdict == "problem"
    assert "--store" in finding.advice


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (finding,) = check_store(str(tmp_path))
    assert finding.verdict == "problem"
    assert "permission" in finding.found


def test_a_store_under_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    findings = check_store(str(tmp_path / "file" / "store"))
    assert any(finding.verdict == "problem" for finding in findings)
