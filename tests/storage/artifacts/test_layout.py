from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from storage.artifacts.layout import StagingFolder, remove_abandoned

WRITER = """
import signal, sys
from pathlib import Path
from storage.artifacts.layout import StagingFolder
folder = StagingFolder(Path(sys.argv[1]))
(folder.path / "half").write_text("half")
print(folder.path, flush=True)
signal.pause()
"""


def test_a_folder_in_use_is_kept_and_one_of_a_killed_writer_removed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        folder = Path(writer.stdout.readline().strip())
        remove_abandoned(tmp_path)
        assert (folder / "half").exists()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert (folder / "half").exists()
    remove_abandoned(tmp_path)
    assert not folder.exists()


def test_release_removes_the_folder(tmp_path: Path) -> None:
    folder = StagingFolder(tmp_path)
    (folder.path / "file").write_text("x")
    folder.release()
    assert list(tmp_path.iterdir()) == []


def test_there_is_nothing_to_remove_where_nothing_was_written(tmp_path: Path) -> None:
    remove_abandoned(tmp_path / "staging")
    assert not (tmp_path / "staging").exists()
