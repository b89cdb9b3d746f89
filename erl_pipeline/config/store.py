"""Settings of what a machine keeps of a store that is a bucket."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings
from storage.artifacts.cache import CacheSettings
from storage.filesystem import MOST_CONNECTIONS


class StoreConfig(Settings):
    """How a machine reads and writes a store that is a bucket; a store that is a folder needs none of it. The
    store's address is no setting (`--store`). No artifact's id depends on these, and a run can be continued
    with others."""

    cache_gb: float | None = Field(default=None, gt=0)
    """Gigabytes (10^9 bytes) of artifacts that each machine keeps of the bucket, for all processes on it
    together, so that none is downloaded twice; `null` for no limit. Where it would be more, artifacts that no
    process uses are removed, the one used longest ago first. Those that a stage at work reads stay, so that
    it can be more for as long as they alone need more. Files that are being written come on top."""
    connections: int = Field(default=8, ge=1, le=MOST_CONNECTIONS)
    """Parts of files that each process sends or fetches at the same time: small files side by side, large
    ones in parts of 16 MiB, of which each takes about twice that of memory."""

    def cache(self) -> CacheSettings:
        """The same for the store's own layer."""
        limit = None if self.cache_gb is None else int(self.cache_gb * 1e9)
        return CacheSettings(limit, self.connections)
