"""Settings of the reflection memory."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import Settings, switch

InstructionPer = Literal["policy", "task_type"]
"""What has an instruction of its own, where a policy is given any."""


class WithdrawalConfig(Settings):
    """Memory is withdrawn over the iterations, so that the policy learns to do without: from `first` on fewer
    of a group's samples see it, though at least two, at `last` and after it none. The share falls linearly,
    as the number of skills that are shown does in SKILL0 (arXiv 2604.02268), which falls by what each
    category gains from them; here it falls for all entries alike."""

    first: int = Field(default=1, ge=1)
    """The first iteration with fewer of them."""
    last: int = Field(ge=2)
    """The first iteration in which nothing is retrieved."""

    @model_validator(mode="after")
    def _in_order(self) -> WithdrawalConfig:
        if self.last <= self.first:
            raise ValueError(f"last: {self.last}; allowed is more than first, {self.first}")
        return self


class RetrievalSettings(Settings):
    """How a memory is searched for one reflection. A setting that is off is None, so that it changes no
    artifact."""

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
    exploration: float | None = None
    withdrawal: WithdrawalConfig | None = None

    def withheld_at(self, iteration: int, group_size: int) -> float:
        """The share of a group's samples whose reflections see no memory in an iteration.

        While memory is withdrawn it is a number of whole samples, and never such that one sample alone sees
        memory, or alone does not: it would have nothing to be compared with. So two see it until the end, or
        none from the beginning where two cannot.
        """
        if self.withdrawal is None or iteration < self.withdrawal.first:
            return self.withhold
        if iteration >= self.withdrawal.last:
            return 1.0
        first, last = self.withdrawal.first, self.withdrawal.last
        left = Fraction(last - iteration, last - first + 1)
        before = round(group_size * (1.0 - self.withhold))
        see = min(max(2, int(before * left)), group_size - 2)
        return 1.0 - (see if before >= 2 and see >= 2 else 0) / group_size


class KeepSettings(Settings):
    """What a memory keeps. A setting that is off is None, so that it changes no artifact."""

    embedding_model: str
    merge_similarity: float | None
    max_entries: int | None
    evict: Literal["oldest", "lowest_credit"] | None
    examples: bool = Field(default=False, exclude_if=lambda examples: not examples)


class NoteTrialConfig(Settings):
    """New notes are tried before the memory keeps them: the policy attempts training tasks of their task type
    with a note in the prompt and without. So a note is kept for its effect on other tasks than the one that
    it was written on."""

    notes: int = Field(default=8, ge=1)
    """The most notes that are tried in an iteration: those that led to success most often, then those that
    were written most often. Further ones are not kept."""
    tasks: int = Field(default=4, ge=1)
    """On how many tasks a note is tried. They are drawn by the seed, and none is one that a tried note was
    written on."""
    attempts: int = Field(default=2, ge=1)
    """Attempts at each of them with a note, and as many without any."""
    margin: float = 0.0
    """A note is kept if the mean reward with it is higher than that without by more than this."""
    failures: bool = False
    """`on`: notes whose second attempt failed are tried too."""


class MemoryConfig(Settings):
    """Reflections that led to success, with one entry for each text and task type. They are retrieved by the
    similarity of the situation that they came from, by their credit, and by how often they were written."""

    embedding_model: str = "all-MiniLM-L6-v2"
    """`all-MiniLM-L6-v2` (its weights come with an installed package, without network), a folder, or a name
    that sentence-transformers loads. Of these, models that have a tokenizer of transformers and a limit of
    tokens; static embeddings do not."""
    top_k: int = Field(default=1, ge=1, le=32)
    """Number of entries shown to one reflection. The vector search is exact, whatever the memory's size, so
    that retrieval can be reproduced."""
    same_task_type: bool = True
    """Whether only entries of the same task type are retrieved."""
    withhold: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of a group's samples, drawn by the seed, whose reflections see no memory. The others are compared
    with them, to know how much an entry helps: its credit. 0: memory is withheld from none, and credits
    stay 0."""
    credit_weight: float = Field(default=1.0, ge=0.0)
    """Entries are ranked by cosine similarity + `credit_weight` x credit + `support_weight` x ln(support)
    - `retrieval_penalty` x ln(1 + retrievals). With all three at 0, only the vector search ranks them."""
    support_weight: float = Field(default=0.1, ge=0.0)
    """Weight of the logarithm of an entry's support: how many times its text was written and helped."""
    retrieval_penalty: float = Field(default=0.05, ge=0.0)
    """Weight of the logarithm of how often an entry was shown, so that other entries are shown too and get a
    credit (lambda of Complementary RL, arXiv 2603.17621, which uses 0.4)."""
    exploration: float = Field(default=0.0, ge=0.0)
    """Weight of an upper confidence bound beside the credit: + `exploration` x sqrt(ln(1 + all retrievals) /
    (1 + retrievals)), over the entries that are ranked (UCB1, Auer et al. 2002). An entry that was seldom
    shown is tried before its credit is believed. 0: off."""
    withdrawal: WithdrawalConfig | None = None
    """Over which iterations memory is withdrawn; null: it is not."""
    candidates: int = Field(default=256, ge=1)
    """How many entries are ranked: the most similar ones."""
    min_similarity: float | None = Field(default=None, ge=-1.0, le=1.0)
    """Entries that are less similar than this are not retrieved. null: no limit."""
    fallback: Literal["none", "recent"] = "none"
    """What is retrieved if no entry reaches `min_similarity`. `none`: nothing. `recent`: the `top_k` entries
    that were written last."""
    merge_similarity: float | None = Field(default=None, gt=0.0, le=1.0)
    """A new reflection whose text is at least this similar (cosine) to that of an earlier one of the same
    task type is merged with it: the earlier one stays, with more support. It is compared with the 32 entries
    whose situations are most similar. null: only equal texts are merged."""
    max_entries: int | None = Field(default=None, ge=1)
    """The most entries that the memory holds; beyond that it evicts entries. null: no limit."""
    evict: Literal["oldest", "lowest_credit"] = "oldest"
    """Which entries leave a full memory: those whose text was written longest ago, or those with the lowest
    credit. The other rule decides between equals."""
    examples: bool = Field(default=False, exclude_if=lambda examples: not examples)
    """`on`: an entry is a whole example, the words of the failed attempt, the reflection, and the words of
    the attempt that then succeeded, and is shown so. Copies of a reflection are no longer one entry, since
    their attempts differ; prompts grow by two attempts for each entry. Not for a tiny policy."""
    trials: Annotated[NoteTrialConfig | None, BeforeValidator(switch)] = None
    """How new notes are tried before they are kept. `off`: those that led to success are kept. `on`: tried
    with the defaults."""

    @model_validator(mode="after")
    def _possible_together(self) -> MemoryConfig:
        if self.fallback == "recent" and self.min_similarity is None:
            raise ValueError(
                "fallback: recent is for entries below min_similarity, which is null; set min_similarity too"
            )
        if self.examples and self.trials is not None:
            raise ValueError(
                "examples: on with trials: on would try a reflection and keep a whole example; switch one off"
            )
        return self

    @property
    def retrieval(self) -> RetrievalSettings:
        """How it is searched, apart from what it keeps."""
        weighted = self.credit_weight or self.support_weight or self.retrieval_penalty or self.exploration
        values = self.model_dump(include=set(RetrievalSettings.model_fields))
        if not weighted:
            values["candidates"] = None
        if self.min_similarity is None:
            values["fallback"] = None
        if not self.exploration:
            values["exploration"] = None
        return RetrievalSettings(**values)

    @property
    def keep(self) -> KeepSettings:
        """What it keeps, apart from how it is searched."""
        values = self.model_dump(include=set(KeepSettings.model_fields))
        if self.max_entries is None:
            values["evict"] = None
        return KeepSettings(**values)


def require_subgroups(retrieval: RetrievalSettings, group_size: int, *, replays: bool = False) -> None:
    """Raise ValueError if a subgroup, in which rewards are compared, could have a single sample. A task that
    is replayed has one fresh episode less, so that a number of samples which is right for others may leave
    one of its own alone."""
    if replays and retrieval.withdrawal is not None:
        raise ValueError(
            "memory.withdrawal with replay: memory is withdrawn from whole samples of a group, and a "
            "replayed task has one less; set replay: off, withdrawal: null, or objective.advantages_per: "
            "group"
        )
    episodes = group_size - replays
    shares = (episodes * retrieval.withhold, episodes * (1.0 - retrieval.withhold))
    if any(0.0 < share < 2.0 for share in shares):
        raise ValueError(
            f"rollouts.group_size: {group_size}; with the method's withhold: {retrieval.withhold:g}"
            f"{' and replay' if replays else ''} a subgroup can have a single sample, whose reward has "
            "nothing to be compared with; allowed are groups that are large enough for two, withhold: 0, "
            "or objective.advantages_per: group"
        )
