"""Settings of HotpotQA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings

SearchMode = Literal["full_text", "vector", "hybrid"]


class HotpotQAConfig(PluginSettings):
    """Questions that need two pages of an encyclopedia, with a search tool to find them."""

    type: Literal["hotpotqa"] = "hotpotqa"
    task_file: str | None = None
    """Questions in HotpotQA's official distractor format: a JSON list of objects with `_id`, `question`,
    `answer`, `supporting_facts`, `context`, `type` and `level`. It must be set."""
    passage_file: str | None = None
    """Further pages that the search can find: JSON lines `{"title", "text"}`; `null`: those of the questions'
    contexts alone."""
    split_seed: int = Field(default=0, ge=0)
    """Chooses which questions are training, held-out and test tasks."""
    held_out_share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Share of the questions that held-out tasks are made of."""
    test_share: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Share of the questions that are in the third split, which only `compare` uses. 0: there is none."""
    tool_format: Literal["auto", "template", "plain"] = "auto"
    """`template`: the tool is offered through the policy's chat template, and called in its form. `plain`:
    the policy writes a line `Search: ...`. `auto`: `template` where the policy's chat template knows tools,
    as Qwen's does, else `plain`, as with SmolLM2's; attempts without a policy, such as those of `env play`,
    have `template`."""
    search: SearchMode = "hybrid"
    """`full_text`: pages with most of the words (BM25). `vector`: pages near in meaning. `hybrid`: both,
    fused by rank."""
    passages: int = Field(default=3, ge=1, le=10)
    """Pages that a search returns."""
    passage_characters: int = Field(default=600, ge=1)
    """Characters of a page that the policy is shown; the rest is cut off."""
    embedding_model: str = "all-MiniLM-L6-v2"
    """The model that makes the vectors, named like that of the memory. Not used by `search: full_text`."""
    embedded_characters: int = Field(default=120, ge=1)
    """Characters of a page, its title first, that its vector is made of. The more there are, the longer the
    index takes to build; full text always covers the whole page."""
    max_turns: int = Field(default=5, ge=1, le=64)
    """The most turns in one attempt, including the turn that answers."""
    max_bad_calls: int = Field(default=3, ge=1)
    """After this many calls that could not be done, an attempt ends without reward."""
    reward: Literal["f1", "exact_match"] = "f1"
    """The reward of an answer. An attempt succeeds where it reaches `rollouts.success_threshold`: with
    `exact_match` that is an exact match; with `f1` and a threshold of 1 it is the right words in any order,
    and with a lower threshold some of them."""

    @property
    def is_plain(self) -> bool:
        """Whether the tool is called in plain lines."""
        return self.tool_format == "plain"

    @model_validator(mode="after")
    def _training_questions_are_left(self) -> HotpotQAConfig:
        if self.held_out_share + self.test_share >= 1.0:
            raise ValueError(
                f"held_out_share: {self.held_out_share:g} and test_share: {self.test_share:g}: allowed is "
                "less than 1 together, since training tasks are made of the rest"
            )
        return self
