"""A report on a node: versions, code, plug-ins and the store, as a process on that node sees them."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.plan.fingerprint import package_fingerprint
from storage.artifacts.layout import StoreLayout
from storage.artifacts.manifest import machine, package_versions
from storage.artifacts.staging import StagingFolder
from storage.errors import ConfigError, StoreError
from storage.filesystem import open_root, read_bytes, write_new

_OWN_PACKAGES = ("storage", "erl_pipeline", "flows")
_NOT_OF_BYTES = ("prefect", "gymnasium")
"""Packages that manifests record, but with which no stage computes."""


@dataclass(frozen=True)
class Question:
    """What a node is asked.

    Args:
        packages: those whose code the run depends on.
        store_uri: the run's store; empty to check no store.
        sign: path, relative to the store, of a file that the driver wrote there.
        content: the content of that file, and of the node's file.
        answer: path, relative to the store, of the file that this node writes.
    """

    packages: Sequence[str]
    store_uri: str
    sign: str
    content: bytes
    answer: str


@dataclass(frozen=True)
class NodeReport:
    """What a node has.

    `code`: digest of the files of this project. `plugins`: package -> fingerprint, empty if it is missing.
    `store`: the problem with the store, empty if there is none.
    """

    host: str
    python: str
    processor: str
    versions: Mapping[str, str]
    code: str
    plugins: Mapping[str, str]
    store: str


def look(question: Question) -> NodeReport:
    """Make a report on the node on which this is called."""
    versions = {name: found for name, found in package_versions().items() if name not in _NOT_OF_BYTES}
    return NodeReport(
        host=platform.node(),
        python=platform.python_version(),
        processor=str(machine(None)["processor"]),
        versions=versions,
        code=_own_code(),
        plugins={package: _fingerprint(package) for package in question.packages},
        store=_store_problem(question) if question.store_uri else "",
    )


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


def _fingerprint(package: str) -> str:
    try:
        return package_fingerprint(package)
    except ConfigError:
        return ""


def _store_problem(question: Question) -> str:
    """The problem with the store, empty if there is none: it must be the driver's, and this node must be able
    to write and lock in it."""
    try:
        root = open_root(question.store_uri)
        # If the driver's file cannot be seen, this is another folder, and nothing is written to it.
        if read_bytes(root, root.join(question.sign)) != question.content:
            return "is not the one that the driver sees: a file that it wrote there cannot be found"
        StagingFolder(StoreLayout(root).staging).release()
        write_new(root, root.join(question.answer), question.content)
    except StoreError as error:
        return f"cannot be used: {error}"
    return ""
