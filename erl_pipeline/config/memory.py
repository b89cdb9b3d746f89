"""Settings of the reflection memory."""

from __future__ import annotations

from pydantic import Field

from erl_pipeline.config.base import Settings


class MemoryConfig(Settings):
    """Reflections that led to success, found again by similarity of the situation they came from."""

    embedding_model: str = "all-MiniLM-L6-v2"
    """`all-MiniLM-L6-v2` (its weights come with an installed package, no network), a folder, or any name
    that sentence-transformers loads."""
    top_k: int = Field(default=1, ge=1, le=32)
    """Entries shown to one reflection."""
    same_task_type: bool = True
    """Only entries of the same task type are retrieved."""
