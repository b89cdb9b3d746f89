"""Guess a number: each wrong guess is answered with `higher` or `lower`."""

from __future__ import annotations

from erl_pipeline.environments.gold_answers import GoldAnswers
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.environments.tiny_parts import TinyPlayer
from guess_number import environment, tasks, tiny
from guess_number.compact import CompactPrompts
from guess_number.settings import GuessNumberConfig


def _prompts(settings: GuessNumberConfig) -> PromptFormat | None:
    return CompactPrompts(settings.largest) if settings.format == "compact" else None


ENVIRONMENT = EnvironmentPlugin(
    settings=GuessNumberConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_guess_number,
    prompts=_prompts,
    tiny=TinyPlayer(parts=tiny.tiny_parts, needs="format: compact"),
    gold_answers=GoldAnswers(environment.gold_answer),
)
