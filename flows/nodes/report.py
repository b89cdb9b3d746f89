"""A report on a node: versions, code, plug-ins and the store, as a process on that node sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.plan.fingerprint import package_fingerprint
from erl_pipeline.software import Software, software_here
from storage.artifacts.layout import StagingFolder, StoreLayout
from storage.errors import ConfigError, StoreError
from storage.filesystem import open_root, read_bytes, write_new


@dataclass(frozen=True)
class NodeQuestion:
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
class NodeReport(Software):
    """What a node has.

    `plugins`: package -> fingerprint, empty if it is missing. `store`: the problem with the store, empty if
    there is none.
    """

    plugins: Mapping[str, str]
    store: str


def look(question: NodeQuestion) -> NodeReport:
    """Make a report on the node on which this is called."""
    return NodeReport(
        **vars(software_here()),
        plugins={package: _fingerprint(package) for package in question.packages},
        store=_store_problem(question) if question.store_uri else "",
    )


def _fingerprint(package: str) -> str:
    try:
        return package_fingerprint(package)
    except ConfigError:
        return ""


def _store_problem(question: NodeQuestion) -> str:
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
