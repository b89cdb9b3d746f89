"""Settings of questions with a checkable answer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.scorers.interface import ScorerName
from erl_pipeline.environments.tasks import require_some_to_train

AnswerFormat = Literal["boxed", "last_line", "tag", "whole"]


class QuestionsConfig(PluginSettings):
    """One question, one answer; the reward is the score that a scorer gives the answer, from 0 to 1."""

    type: Literal["questions"] = "questions"
    training_file: str | None = None
    """The file of questions, one JSON object a line; it has to be given."""
    held_out_file: str | None = None
    """Questions for evaluation, in the same form; null: a share of `training_file` is held out."""
    source: Literal["lines", "gsm8k"] = "lines"
    """What a line holds. `lines`: `{"question", "answer"}`, and if wanted `id`, `task_type` and any further
    fields, which scorers see. `gsm8k`: `{"question", "answer"}` as GSM8K's own files have them (arXiv
    2110.14168), where the answer is a worked solution whose last line is `#### 42`; 42 is what counts."""
    held_out_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the questions of `training_file` that are held out where there is no `held_out_file`."""
    test_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the questions of `held_out_file`, or of `training_file` where there is none, that are set
    aside for `compare`."""
    split_seed: int = Field(default=0, ge=0)
    """Chooses which questions are held out and set aside."""
    task_type: str = Field(default="questions", min_length=1)
    """The kind of all lines that name none; memory is filtered by it."""
    answer_format: AnswerFormat = "boxed"
    """Where the answer is in what the policy says. `boxed`: in the last `\\boxed{...}`. `tag`: in the last
    `<answer>...</answer>`. `last_line`: the last line, without a label such as `Answer:`. `whole`: all of
    it."""
    scorer: ScorerName = "exact"
    """Name of the scorer: `exact`, `numeric`, `math`, `contains`, `f1`, or one of an installed package;
    `erl-pipeline plugins` lists them."""
    instructions: str = ""
    """What the policy is told before the question; a sentence on how to mark the answer is added to it."""

    @model_validator(mode="after")
    def _something_left(self) -> QuestionsConfig:
        require_some_to_train(self.held_out_file, self.held_out_share, self.test_share, "question")
        return self
