"""Settings of the reflection memory."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings


class RetrievalSettings(Settings):
    """How a memory is searched for one reflection; what is off is None, so that it changes no artifact."""

    embedding_model: str
    top_k: int
    same_task_type: bool
    withhold: float
    credit_weight: float
    support_weight: float
    retrieval_penalty: float
    candidates: int | None
    min_similarity: float | None
    fallback: Literal["none", "recent"] | None


class KeepSettings(Settings):
    """What a memory keeps; what is off is None, so that it changes no artifact."""

    embedding_model: str
    merge_similarity: float | None
    max_entries: int | None
    evict: Literal["oldest", "lowest_credit"] | None


class MemoryConfig(Settings):
    """Reflections that led to success, one entry for each text and task type, found again by similarity of
    the situation they came from, by what they were worth and by how often they were written."""

    embedding_model: str = "all-MiniLM-L6-v2"
    """`all-MiniLM-L6-v2` (its weights come with an installed package, no network), a folder, or any name
    that sentence-transformers loads."""
    top_k: int = Field(default=1, ge=1, le=32)
    """Entries shown to one reflection, found by exact search of vectors whatever the memory's size, so
    that what is retrieved can be reproduced."""
    same_task_type: bool = True
    """Only entries of the same task type are retrieved."""
    withhold: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a group's samples, drawn by the seed, whose reflections see no memory. They are what the
    others are compared with, so that it is known what an entry is worth: its credit. 0: memory is withheld
    from none, and credits stay 0."""
    credit_weight: float = Field(default=1.0, ge=0.0)
    """Entries are ranked by cosine similarity + `credit_weight` x credit + `support_weight` x ln(support)
    - `retrieval_penalty` x ln(1 + retrievals). With all three at 0 it is the vector search."""
    support_weight: float = Field(default=0.1, ge=0.0)
    """Weight of the logarithm of how many times the text of an entry was written and helped."""
    retrieval_penalty: float = Field(default=0.05, ge=0.0)
    """Weight of the logarithm of how often an entry was shown, so that others have their turn and get a
    credit of their own (lambda of Complementary RL, arXiv 2603.17621, which has 0.4)."""
    candidates: int = Field(default=256, ge=1)
    """Entries that are ranked: those that are most similar."""
    min_similarity: float | None = Field(default=None, ge=-1.0, le=1.0)
    """Entries that are less similar than this are not retrieved. null: all may be."""
    fallback: Literal["none", "recent"] = "none"
    """Where no entry has `min_similarity`: `none` retrieves nothing, `recent` the `top_k` entries that were
    written last."""
    merge_similarity: float | None = Field(default=None, gt=0.0, le=1.0)
    """A new reflection whose text is at least this similar (cosine) to that of an earlier one of the same
    task type is merged with it: the earlier one stays, with more support. Looked at are the 32 whose
    situations are most similar. null: only equal texts are merged."""
    max_entries: int | None = Field(default=None, ge=1)
    """Entries that the memory holds at most; beyond that it evicts. null: no limit."""
    evict: Literal["oldest", "lowest_credit"] = "oldest"
    """Which entries leave a full memory: those whose text was written longest ago, or those of the lowest
    credit (of equals the other)."""

    @model_validator(mode="after")
    def _possible_together(self) -> MemoryConfig:
        if self.fallback == "recent" and self.min_similarity is None:
            raise ValueError(
                "fallback: recent is for entries below min_similarity, which is null; set min_similarity too"
            )
        return self

    @property
    def retrieval(self) -> RetrievalSettings:
        """How it is searched, apart from what it keeps."""
        weighted = self.credit_weight or self.support_weight or self.retrieval_penalty
        return RetrievalSettings(
            embedding_model=self.embedding_model,
            top_k=self.top_k,
            same_task_type=self.same_task_type,
            withhold=self.withhold,
            credit_weight=self.credit_weight,
            support_weight=self.support_weight,
            retrieval_penalty=self.retrieval_penalty,
            candidates=self.candidates if weighted else None,
            min_similarity=self.min_similarity,
            fallback=None if self.min_similarity is None else self.fallback,
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


def require_subgroups(retrieval: RetrievalSettings, group_size: int) -> None:
    """Raise ValueError where a subgroup, in which rewards are compared, has one sample."""
    shares = (group_size * retrieval.withhold, group_size * (1.0 - retrieval.withhold))
    if any(0.0 < share < 2.0 for share in shares):
        raise ValueError(
            f"rollouts.group_size: {group_size}; with the method's withhold: {retrieval.withhold:g} a "
            "subgroup can have a single sample, whose reward has nothing to be compared with; allowed are "
            "groups that are large enough for two, withhold: 0, or objective.advantages_per: group"
        )
