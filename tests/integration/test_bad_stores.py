"""Real runs on a full disk, a read-only store and a store that fails: the problem is reported, nothing is
half committed, and then the run is resumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from tests import forked
from tests.command_line.invoke import FinishedRun, invoke
from tests.integration.runs import ROOT, artifact_hashes, write_config
from tests.s3_server import s3_server

TMPFS = "mount -t tmpfs -o size={size} tmpfs {folder}"
# A separate mount namespace: what is mounted in it disappears with the last process in it.
UNSHARE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--mount", "--map-root-user"]


def can_mount(folder: Path) -> bool:
    script = TMPFS.format(size="1m", folder=folder)
    tried = subprocess.run([*UNSHARE, "sh", "-c", script], capture_output=True, check=False)
    return tried.returncode == 0


ON_A_SMALL_DISK = """
import json, subprocess, sys
from pathlib import Path
from tests.command_line.invoke import invoke

config, disk, kept = map(Path, sys.argv[1:])
store = disk / "store"
told = {}

def mount(words):
    subprocess.run(["mount", *words.split(), disk], check=True)

def tell(name, *words):
    result = invoke(*words)
    told[name] = [result.status, result.errors]

mount("-t tmpfs -o size=2m tmpfs")
tell("full", "train", config, "--store", store, "--no-prefect", "--set", "resources.full_disk=warn")
folders = (store / "artifacts").glob("*/*")
told["torn"] = [folder.name for folder in folders if not (folder / "manifest.json").exists()]
told["staging"] = [folder.name for folder in (store / "staging").iterdir()]
mount("-o remount,size=100m")
tell("well", "train", config, "--store", store, "--no-prefect")
subprocess.run(["cp", "-r", store, kept], check=True)
# The same store, read-only.
mount(f"--bind {kept}")
mount("-o remount,bind,ro")
tell("finished", "train", config, "--store", disk, "--no-prefect")
tell("further", "train", config, "--store", disk, "--no-prefect", "--iterations", "3")
tell("verify", "lineage", "verify", "small", "--store", disk)
tell("gc", "gc", "--store", disk, "--retain-checkpoints", "1", "--delete")
print(json.dumps(told))
"""


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    finished: FinishedRun, tmp_path: Path
) -> None:
    if shutil.which("unshare") is None or not can_mount(tmp_path):
        pytest.skip("this machine lets us mount no file system, as root or in a user namespace")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", ON_A_SMALL_DISK, finished.config, disk, kept],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    status, errors = told["full"]
    assert status == 2, errors
    assert "No space left on device; the disk is full: free some space, then run the same command again." in (
        errors
    )
    assert (told["torn"], told["staging"]) == ([], [])
    assert told["well"][0] == 0, told["well"]
    verified = invoke("lineage", "verify", "small", "--store", kept)
    assert verified.status == 0, verified.errors
    assert artifact_hashes(kept) == artifact_hashes(finished.store)

    read_only = [told[name] for name in ("finished", "further", "verify", "gc")]
    assert [status for status, _ in read_only] == [0, 2, 0, 2], read_only
    said = [errors for _, errors in read_only]
    assert ["the file system is read-only: choose another store" in each for each in said] == [
        False, True, False, True,
    ]  # fmt: skip
    assert not any("Traceback" in each for each in [errors, *said])


COMMITTER = """
import sys
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.artifacts.recipe import Recipe
from storage.runs.run import RunStore
runs = RunStore(sys.argv[1])
run = runs.open("run") if "run" in runs.list() else runs.create("run", {})
with run.lock(lease_seconds=3600):
    known = {entry.artifact_id for entry in run.stages()}
    before = {}
    for number in range(2):
        recipe = Recipe("evaluate", 1, {"number": number}, before, 0)
        store = ArtifactStore(sys.argv[1])
        if store.find(recipe.artifact_id) is None:
            with store.create(recipe, run="run", iteration=number) as staging:
                for name in "ab":
                    (staging.path / name).write_text(name * number)
                staging.commit()
        if recipe.artifact_id not in known:
            run.record(number, "evaluate", recipe.artifact_id, kind="evaluation", reused=False, seconds=0.0)
        before = {"before": recipe.artifact_id}
"""
READER = """
import sys
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
store, runs = ArtifactStore(sys.argv[1]), RunStore(sys.argv[1])
held = [manifest.artifact_id for manifest in store.list()]
assert all(store.verify(one) == [] for one in held), held
ids = [entry.artifact_id for name in runs.list() for entry in runs.open(name).recorded()]
assert len(ids) == len(set(ids)) and set(ids) <= set(held), (ids, held)
assert sys.argv[2] in ("None", str(len(ids))) and sys.argv[2] in ("None", str(len(held))), (ids, held)
"""


@pytest.mark.slow
def test_a_store_that_fails_every_fifth_operation_keeps_only_whole_artifacts(tmp_path: Path) -> None:
    with s3_server(tmp_path / "log") as server:
        environment = {**os.environ, **server.environment, "TMPDIR": str(tmp_path)}
        once = {**environment, "AWS_MAX_ATTEMPTS": "1"}

        def run(program: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                program, env=env, cwd=ROOT, text=True, capture_output=True, check=False, timeout=240
            )

        # Without retries: every command reports the failure, with the status of a user's error.
        server.fail_every(5)
        config = write_config(tmp_path, iterations=1)
        train = ["train", config, "--store", "s3://bucket/train", "--no-prefect"]
        refused = forked.run(*train, environment=once)
        assert refused.status == 2, refused.errors
        assert "Traceback" not in refused.errors
        assert "error: cannot" in refused.errors

        assert run([sys.executable, "-c", COMMITTER, "s3://bucket/chain"], once).returncode != 0

        # With the client's own retries: everything is committed, although every fifth request fails. Every
        # other failure comes after the operation was carried out: then the client repeats an operation that
        # was done.
        done = run([sys.executable, "-c", COMMITTER, "s3://bucket/chain"], environment)
        assert done.returncode == 0, done.stderr
        server.fail_every(0)
        for store, committed in (("s3://bucket/chain", 2), ("s3://bucket/train", None)):
            checked = run([sys.executable, "-c", READER, store, str(committed)], environment)
            assert checked.returncode == 0, checked.stderr


def test_a_program_that_may_write_no_large_file_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """This needs no right to mount: the kernel's limit on the size of files simulates the full disk."""
    program = (
        "import resource, signal, sys\n"
        "from storage.artifacts.store import ArtifactStore\n"
        "from storage.errors import StoreError\n"
        "from storage.errors import disk_errors\n"
        "from storage.artifacts.recipe import Recipe\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "store = ArtifactStore(sys.argv[1])\n"
        "recipe = Recipe('evaluate', 1, {}, {}, 0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    with disk_errors(sys.argv[1]), store.create(recipe, run='r', iteration=1) as staging:\n"
        "        (staging.path / 'file').write_bytes(bytes(10000))\n"
        "        staging.commit()\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"cannot write {tmp_path / 'store'}: File too large; a file would be larger than is allowed: "
        "raise the limit, then run the same command again.\n"
    )
    assert list(ArtifactStore(str(tmp_path / "store")).list()) == []
    assert list((tmp_path / "store" / "staging").iterdir()) == []
