"""Writing the log of traffic while calls are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from erl_pipeline.serving.settings import LogSettings
from storage.errors import StoreError
from storage.serving.traffic import Record, TrafficLog


class LogWriter:
    """Puts records on disk: before `write` returns, or at most `flush_ms` later. Lives in one event loop.

    `failure` says why the last attempt to write failed; empty while all is well. Nothing is lost then: it is
    tried again until it succeeds. `tell` shows people one line.
    """

    def __init__(self, log: TrafficLog, settings: LogSettings, tell: Callable[[str], None]) -> None:
        self._log = log
        self._each = settings.durability == "each"
        self._seconds = settings.flush_ms / 1000
        self._tell = tell
        self._one = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._since: float | None = None
        self.failure = ""

    @property
    def waiting(self) -> int:
        """Records that are not on disk."""
        return self._log.waiting

    @property
    def lag_seconds(self) -> float:
        """How long the oldest record has waited that is not on disk."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    async def write(self, records: Sequence[Record]) -> None:
        """Take records. Raises StoreError where they, and those before them, have to be on disk now, and
        cannot be written."""
        if records:
            self._log.append(records)
            if self._since is None:
                self._since = time.monotonic()
            self._arrived.set()
        if self._each:
            await self._sync()

    async def flush_forever(self) -> None:
        """Write what arrives, again and again; for a task of its own."""
        while True:
            await self._arrived.wait()
            # Half of the time is left for the disk.
            await asyncio.sleep(self._seconds / 2)
            self._arrived.clear()
            try:
                await self._sync()
            except StoreError:
                self._arrived.set()

    async def _sync(self) -> None:
        async with self._one:
            if not self._log.waiting:
                return  # The call before this one has written them.
            began = time.monotonic()
            try:
                await asyncio.to_thread(self._log.sync)
            except StoreError as error:
                if not self.failure:
                    self._tell(f"The log cannot be written, and no call is answered until it can: {error}")
                self.failure = str(error)
                raise
            self._since = began if self._log.waiting else None
            if self.failure:
                self._tell("The log can be written again.")
            self.failure = ""
