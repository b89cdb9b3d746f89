"""`export` on a run that trained all weights; adapters are exported in `tests/erl_pipeline/policies`."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from transformers import AutoTokenizer

from storage.artifacts.store import ArtifactStore
from tests.command_line.invoke import FinishedRun, invoke


def test_a_trained_model_is_copied_byte_for_byte(finished: FinishedRun, tmp_path: Path) -> None:
    shown = invoke("export", "small", "--output", tmp_path / "a", "--store", finished.store, "--json").json
    assert (shown["iteration"], shown["exported"]) == (2, "weights")
    folder = ArtifactStore(str(finished.store)).open(shown["checkpoint"]).path("model")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files
    AutoTokenizer.from_pretrained(tmp_path / "a")

    first = invoke(
        "export",
        "small",
        "--checkpoint",
        "iteration:0",
        "--output",
        tmp_path / "b",
        "--store",
        finished.store,
        "--json",
    ).json
    assert first["checkpoint"] != shown["checkpoint"]


def test_mistakes_end_with_a_message(finished: FinishedRun, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    for words, problem in (
        (("--output", tmp_path / "full"), "not an empty folder"),
        (("--output", tmp_path / "full" / "note" / "below"), "cannot be written"),
        (
            ("--output", tmp_path / "new", "--checkpoint", "iteration:7"),
            "iteration:7: run small has no such checkpoint",
        ),
        (("--output", tmp_path / "new", "--adapter-only"), "has no adapter"),
    ):
        result = invoke("export", "small", *words, "--store", finished.store)
        assert result.status == 2
        assert problem in result.errors
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_write_protected_store_gives_a_folder_that_can_be_written(
    finished: FinishedRun, tmp_path: Path
) -> None:
    store = shutil.copytree(finished.store, tmp_path / "store")
    folders = [path for path in store.glob("artifacts/*/*/**") if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    try:
        shown = invoke("export", "small", "--output", tmp_path / "model", "--store", store)
        assert shown.status == 0, shown.errors
        assert (tmp_path / "model").stat().st_mode & stat.S_IWUSR
    finally:
        for path in folders:
            path.chmod(0o755)
