"""What a judge is asked about an attempt."""

from __future__ import annotations

from erl_pipeline.config.prompts import JudgeFeedback
from erl_pipeline.config.templates import render
from erl_pipeline.environments.chat_prompts import report_values
from erl_pipeline.environments.messages import Message, opening
from erl_pipeline.environments.prompt_format import AttemptReport


def judge_prompt(judge: JudgeFeedback, instructions: str, report: AttemptReport) -> list[Message]:
    """The messages that ask for its judgement."""
    return opening(render(judge.system, {}), render(judge.template, report_values(instructions, report)))
