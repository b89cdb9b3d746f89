"""Settings of how a machine reads, writes and caches a store in a bucket."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings
from storage.artifacts.cache import CacheSettings
from storage.filesystem import MOST_CONNECTIONS


class StoreConfig(Settings):
    """How a machine reads and writes a store in a bucket; a store in a folder needs none of this. The store's
    address is not a setting but an option (`--store`). No artifact's id depends on these settings, and a run
    can be continued with others."""

    cache_gb: float | None = Field(default=None, gt=0)
    """Gigabytes (10^9 bytes) of artifacts that each machine caches for all its processes together, so that
    none is downloaded twice; `null`: no limit. Beyond the limit, artifacts that no process uses are removed,
    the least recently used first. Artifacts that a stage is reading stay, so the cache is larger for a while
    if they alone need more. Files that are being written are not counted."""
    connections: int = Field(default=8, ge=1, le=MOST_CONNECTIONS)
    """How many transfers each process makes at the same time: small files as a whole, large ones in parts of
    16 MiB. Each part takes about twice its size in memory."""

    def cache(self) -> CacheSettings:
        """The same settings in the form that the store takes."""
        limit = None if self.cache_gb is None else int(self.cache_gb * 1e9)
        return CacheSettings(limit, self.connections)
