"""Settings of streamed evaluation."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class StreamConfig(Settings):
    """Streams of tasks in held-out realms. The tasks of a stream are played one after the other, with the
    notes made earlier in the stream."""

    realms: int = Field(default=8, ge=2)
    """Number of held-out realms; at least two, so that one can be given another's note."""
    streams: int = Field(default=16, ge=1)
    """Number of independent streams in each realm."""
    encounters: int = Field(default=6, ge=1)
    """Number of tasks in one stream."""
