"""What the bytes of results depend on besides recipes: Python, packages and this project's code, on one
machine, in what two machines differ, and which packages of an extra are missing."""

import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from storage.artifacts.manifest import machine, package_versions

_OWN_PACKAGES = ("storage", "erl_pipeline", "flows")
_NOT_OF_BYTES = ("prefect", "gymnasium")
"""Packages that manifests record, but with which no stage computes."""


@dataclass(frozen=True)
class Software:
    """What a machine has. `versions`: package -> version. `code`: digest of the files of this project."""

    host: str
    python: str
    processor: str
    versions: Mapping[str, str]
    code: str


def software_here() -> Software:
    """What this machine has; files are read at each call."""
    return Software(
        host=platform.node(),
        python=platform.python_version(),
        processor=str(machine(None)["processor"]),
        versions={name: found for name, found in package_versions().items() if name not in _NOT_OF_BYTES},
        code=_own_code(),
    )


def software_differences(there: Software, here: Software) -> Iterator[str]:
    """In what another machine differs from this one, so that it cannot compute the same; each text also says
    what to do. Processors may differ."""
    if there.python != here.python:
        yield f"Python is {there.python}, here {here.python}: install the same"
    for name, version in here.versions.items():
        found = there.versions.get(name)
        if found != version:
            what = "is missing" if found is None else f"is {found}"
            yield f"package {name} {what}, here {version}: pip install {name}=={version}"
    if there.code != here.code:
        yield "the code of erl-pipeline differs: install the same version on both"


def _own_code() -> str:
    """A digest of this project's files, comments included: faster than fingerprints, and nodes have no reason
    to differ even in comments."""
    digest = hashlib.sha256()
    for package in _OWN_PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{package}/{path.relative_to(folder).as_posix()}"
                digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def missing_of_extra(distribution: str, extra: str) -> list[str]:
    """The requirements of an extra that are not installed, or installed in a wrong version; empty if `extra`
    is."""
    if not extra:
        return []
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in map(Requirement, requirements)
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
        and not _is_installed(requirement)
    ]


def _is_installed(requirement: Requirement) -> bool:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)
