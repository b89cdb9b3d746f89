"""Settings of the reflection memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import Settings


class RetrievalSettings(Settings):
    """How a memory is searched for one reflection."""

    embedding_model: str
    top_k: int
    same_task_type: bool


class KeepSettings(Settings):
    """What a memory keeps; what is off is None, so that it changes no artifact."""

    embedding_model: str
    merge_similarity: float | None
    max_entries: int | None
    evict: Literal["oldest", "lowest_gain"] | None


class MemoryConfig(Settings):
    """Reflections that led to success, found again by similarity of the situation they came from."""

    embedding_model: str = "all-MiniLM-L6-v2"
    """`all-MiniLM-L6-v2` (its weights come with an installed package, no network), a folder, or any name
    that sentence-transformers loads."""
    top_k: int = Field(default=1, ge=1, le=32)
    """Entries shown to one reflection, found by exact search of vectors whatever the memory's size, so
    that what is retrieved can be reproduced."""
    same_task_type: bool = True
    """Only entries of the same task type are retrieved."""
    merge_similarity: float | None = Field(default=None, gt=0.0, le=1.0)
    """A new reflection that is at least this similar (cosine) to an earlier one of the same task type, in
    situation and in text, is merged with it: the earlier one stays and counts how many it stands for. null:
    none are merged."""
    max_entries: int | None = Field(default=None, ge=1)
    """Entries that the memory holds at most; beyond that it evicts. null: no limit."""
    evict: Literal["oldest", "lowest_gain"] = "oldest"
    """Which entries leave a full memory: the oldest, or those whose second attempt gained the least reward
    (of equals the oldest)."""

    @property
    def retrieval(self) -> RetrievalSettings:
        """How it is searched, apart from what it keeps."""
        return RetrievalSettings(
            embedding_model=self.embedding_model, top_k=self.top_k, same_task_type=self.same_task_type
        )

    @property
    def keep(self) -> KeepSettings:
        """What it keeps, apart from how it is searched."""
        return KeepSettings(
            embedding_model=self.embedding_model,
            merge_similarity=self.merge_similarity,
            max_entries=self.max_entries,
            evict=None if self.max_entries is None else self.evict,
        )
