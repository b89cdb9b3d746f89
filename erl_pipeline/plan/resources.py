"""What a worker process keeps between stages, such as models in memory and servers, and its settings.

No artifact id depends on any of it. Bytes depend on the number of threads, so every manifest records it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from storage.artifacts.cache import CacheSettings
from storage.artifacts.store import ArtifactStore
from storage.filesystem import open_root

if TYPE_CHECKING:
    from erl_pipeline.trainers.other_nodes import OtherNodes

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerSettings:
    """All that a worker process needs to know besides the planned stage. `engine` and `trainer` hold the
    operational settings of the two, such as servers and deadlines, which no artifact depends on."""

    store_uri: str
    run: str
    threads: int
    engine: dict[str, Any] = field(default_factory=dict)
    cache: CacheSettings = field(default_factory=CacheSettings)
    """What the worker's machine caches of a store in a bucket."""
    trainer: dict[str, Any] = field(default_factory=dict)


class Resources:
    """What the stages of one process share. Close it when no stage is at work any more.

    Args:
        other_nodes: machines that the runner keeps for trainings; None where it keeps none.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        stop: threading.Event | None = None,
        store: ArtifactStore | None = None,
        other_nodes: OtherNodes | None = None,
    ) -> None:
        self.settings = settings
        self.store = store or ArtifactStore(settings.store_uri, settings.threads, settings.cache)
        self.stop = stop or threading.Event()
        """Set when the run was asked to stop; long computations check it."""
        self.other_nodes = other_nodes
        self._kept: dict[str, Any] = {}
        self._open = ExitStack()
        self._lock = threading.RLock()

    @property
    def scratch(self) -> Path:
        """A folder on this machine for files that are not artifacts, such as a server's log."""
        return open_root(self.store.uri).scratch / "runs" / self.settings.run

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """What `make` returned for this name; it is called once for each name. If it returns a context
        manager, that is entered now, and left when the resources are closed."""
        with self._lock:
            if name not in self._kept:
                made = make()
                if hasattr(made, "__enter__"):
                    made = self._open.enter_context(made)  # type: ignore[arg-type]
                self._kept[name] = made
            kept: T = self._kept[name]
            return kept

    def kept(self, name: str) -> Any | None:
        """What `keep` has made under this name; None if nothing."""
        return self._kept.get(name)

    def close(self) -> None:
        """End what was started."""
        self._kept.clear()
        self._open.close()

    def __enter__(self) -> Resources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
