"""Settings of streamed evaluation."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class StreamConfig(Settings):
    """Streams of tasks in held-out realms, one after the other, with what was noted in the stream before."""

    realms: int = Field(default=8, ge=2)
    """Held-out realms; at least two, so that one can be given the other's note."""
    streams: int = Field(default=16, ge=1)
    """Independent streams in each realm."""
    encounters: int = Field(default=6, ge=1)
    """Tasks of one stream, one after the other."""
