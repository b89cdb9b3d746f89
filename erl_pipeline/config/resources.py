"""Settings of what a run computes on; no artifact's id depends on them."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class ResourcesConfig(Settings):
    """What a run may keep busy. A run can be continued with others, but for the bytes of `threads`."""

    threads: int = Field(default=2, ge=1, le=256)
    """CPU threads of torch in each process. Bytes are reproducible for a fixed number of threads."""
    devices: int = Field(default=1, ge=1, le=64)
    """Stages that may compute with a model at the same time, each on a device of its own. A machine without
    GPU counts its processor as one; with more, its cores are shared."""
