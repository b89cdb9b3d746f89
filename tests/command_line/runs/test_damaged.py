"""One damaged file hides nothing else of a store, and is named with the command that mends it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke


@pytest.fixture
def store(finished: FinishedRun, tmp_path: Path) -> Path:
    """The finished run `small`, and a run `other` with one artifact."""
    shutil.copytree(finished.store, tmp_path / "store")
    other = RunStore(str(tmp_path / "store")).create("other", {"imported": True})
    recipe = Recipe("import_trajectories", 1, {}, {}, 0, kind="trajectories")
    with ArtifactStore(str(tmp_path / "store")).create(recipe, run="other", iteration=1) as staging:
        staging.commit()
    other.record(1, recipe.stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=1.0)
    return tmp_path / "store"


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 100])
def test_an_unreadable_run_json_hides_no_other_run(
    finished: FinishedRun, store: Path, content: bytes
) -> None:
    record = store / "runs" / "small" / "run.json"
    whole = record.read_bytes()
    record.write_bytes(content)
    listed = invoke("runs", "list", "--store", store)
    assert listed.status == 0, listed.errors
    assert "other" in listed.output
    assert "Run small is damaged" in listed.output
    assert "train CONFIG --name small --check" in listed.output
    assert invoke("runs", "show", "other", "--store", store).status == 0
    rows = {row["run"]: row for row in invoke("runs", "list", "--store", store, "--json").json}
    assert rows["small"]["state"] == "damaged"
    assert rows["other"]["state"] == "imported"
    if content:
        return
    mended = invoke("train", finished.config, "--name", "small", "--check", "--no-prefect", "--store", store)
    assert mended.status == 0, mended.errors
    assert record.read_bytes() == whole


@pytest.mark.parametrize("words", [("show", "small"), ("remove", "small")])
def test_a_run_whose_ledger_is_cut_is_neither_shown_nor_removed(store: Path, words: tuple[str, ...]) -> None:
    ledger = store / "runs" / "small" / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-2]))
    said = invoke("runs", *words, "--store", store)
    assert said.status == 2
    assert "ledger" in said.errors
    assert "Traceback" not in said.errors
    assert (store / "runs" / "small").exists()


def test_status_shows_the_rest_of_a_run_with_an_emptied_manifest(finished: FinishedRun, store: Path) -> None:
    (manifest,) = (store / "artifacts" / "prepare_tasks").glob("*/manifest.json")
    whole = invoke("status", "small", "--store", store).output
    manifest.write_bytes(b"")
    shown = invoke("status", "small", "--store", store)
    assert shown.status == 0
    assert f"artifact {manifest.parent.name} (iteration 0, prepare_tasks)" in shown.output
    assert "train CONFIG --name small --check" in shown.output
    # The time of iteration 0 lacks that of the damaged artifact.
    rows = [line for line in whole.splitlines() if re.match(r" +[12] \d", line)]
    assert len(rows) == 2
    assert set(rows) <= set(shown.output.splitlines())
    report = invoke("report", "small", "--store", store)
    assert "train CONFIG --check" in " ".join(report.errors.split())
    words = ("train", finished.config, "--check", "--no-prefect", "--store", store)
    assert invoke(*words).status == 0
    assert "damaged" not in invoke("status", "small", "--store", store).output


def test_a_changed_schema_version_is_said(store: Path) -> None:
    for path in [
        store / "runs" / "small" / "run.json",
        *(store / "artifacts" / "prepare_tasks").glob("*/manifest.json"),
    ]:
        whole = path.read_bytes()
        path.write_bytes(
            whole.replace(b'"schema_version": 3', b'"schema_version": 4').replace(
                b'"schema_version":3', b'"schema_version":4'
            )
        )
        assert path.read_bytes() != whole
        told = invoke("report", "small", "--store", store)
        assert told.status == 2
        assert "it says schema version 4, and this program reads version 3" in " ".join(told.errors.split())
        path.write_bytes(whole)
