"""A survey of the nodes of a run, before any of them computes: the question to each, and the finding."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from flows.nodes.check import NodeFinding, NodeT, problems_of
from flows.nodes.report import NodeQuestion, NodeReport, look
from storage.errors import store_errors
from storage.filesystem import StoreRoot, open_root, read_bytes, write_new

ANSWER_SECONDS = 90.0
"""How many seconds a node may take to answer."""
_CLOCK_QUESTIONS = 5


@dataclass(frozen=True)
class Survey:
    """The question to nodes, and this machine's own report to compare with. How a node is asked is up to the
    runner."""

    root: StoreRoot | None
    store_uri: str
    packages: Sequence[str]
    folder: str
    content: bytes
    here: NodeReport

    def question(self, node_id: str) -> NodeQuestion:
        """The question to one node."""
        return NodeQuestion(
            packages=self.packages,
            store_uri=self.store_uri,
            sign=f"{self.folder}/driver",
            content=self.content,
            answer=f"{self.folder}/{node_id}",
        )

    def finding(self, node: NodeT, report: NodeReport, clock_offset: float) -> NodeFinding[NodeT]:
        """What follows from the answer of a node."""
        problems = list(problems_of(report, self.here, clock_offset, self.store_uri))
        if self.root is not None and not report.store and not self._has_written(node.id):
            problems.append(
                f"store {self.store_uri} is not the one that the driver sees: a file that the node wrote "
                "there cannot be found. Use a folder that every node mounts at the same path, or a bucket"
            )
        return NodeFinding(node, report, clock_offset, tuple(problems))

    def _has_written(self, node_id: str) -> bool:
        assert self.root is not None
        return read_bytes(self.root, self.root.join(f"{self.folder}/{node_id}")) == self.content


def uri_for_all(store_uri: str) -> str:
    """The store's URI as nodes can use it, whatever their working folder: local paths become absolute."""
    root = open_root(store_uri)
    return os.path.abspath(root.path) if root.local else store_uri


@contextmanager
def survey_of(store_uri: str, packages: Sequence[str]) -> Iterator[Survey]:
    """A survey, inside this context; the files that it writes into the store are removed afterwards.

    Args:
        store_uri: as `uri_for_all` gives it; empty for no store.
        packages: those whose code the run depends on.

    Raises StoreError when this machine cannot write to the store.
    """
    content = secrets.token_hex(16).encode()
    folder = f".cluster-{secrets.token_hex(8)}"
    question = NodeQuestion(packages, "", "", content, "")
    root = open_root(store_uri) if store_uri else None
    if root is not None:
        write_new(root, root.join(f"{folder}/driver"), content)
    try:
        yield Survey(root, store_uri, packages, folder, content, look(question))
    finally:
        if root is not None:
            with store_errors("remove", root.join(folder)), suppress(FileNotFoundError):
                root.fs.rm(root.join(folder), recursive=True)


def clock_offset(there: Callable[[], float]) -> float:
    """Seconds by which another clock is ahead, measured by the fastest of several calls.

    Args:
        there: asks that clock for its seconds since the epoch.
    """
    asked = []
    for _ in range(_CLOCK_QUESTIONS):
        before = time.time()
        told = there()
        after = time.time()
        asked.append((after - before, told - (before + after) / 2))
    return min(asked)[1]
