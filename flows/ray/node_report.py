"""What a node has: versions, code, plug-ins and the store, as a process on that node sees them."""

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
"""Recorded in manifests, but no stage computes with them."""


@dataclass(frozen=True)
class Question:
    """What a node is asked.

    Args:
        packages: whose code the run follows from.
        store_uri: of the run; empty to ask for none.
        sign: path, below the store, of a file that the driver wrote there.
        content: what it wrote.
        answer: path, below the store, of the file that this node is to write.
    """

    packages: Sequence[str]
    store_uri: str
    sign: str
    content: bytes
    answer: str


@dataclass(frozen=True)
class NodeReport:
    """What there is on a node.

    `code`: digest of the files of this project. `plugins`: package -> fingerprint, empty where it is missing.
    `store`: what is wrong with the store, empty where nothing is.
    """

    host: str
    python: str
    processor: str
    versions: Mapping[str, str]
    code: str
    plugins: Mapping[str, str]
    store: str


def look(question: Question) -> NodeReport:
    """Look at this node."""
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
    """A digest of this project's files as they are: quicker than fingerprints, and comments are no reason for
    nodes to differ."""
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
    """Whether this is the driver's store, in which this node can write and lock."""
    try:
        root = open_root(question.store_uri)
        # Where the driver's file is not to be seen nothing is written: it would be another folder.
        if read_bytes(root, root.join(question.sign)) != question.content:
            return "is not the one that the driver sees: a file that it wrote there is not to be found"
        StagingFolder(StoreLayout(root).staging).release()
        write_new(root, root.join(question.answer), question.content)
    except StoreError as error:
        return f"cannot be used: {error}"
    return ""
