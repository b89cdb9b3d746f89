from __future__ import annotations

import os
from pathlib import Path

from storage.artifacts.layout import StagingFolder
from storage.artifacts.store import ArtifactStore
from tests.integration.killing import writers


def test_who_writes_an_artifact_is_found_by_its_open_folder(tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert writers(store) == set()
    folder = StagingFolder(ArtifactStore(str(store)).staging_folder)
    assert writers(store) == {os.getpid()}
    folder.release()
    assert writers(store) == set()
