"""Guess a number: each wrong guess is answered with `higher` or `lower`."""

from __future__ import annotations

from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.prompt_format import PromptFormat
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
    tiny=tiny.tiny_parts,
    tiny_needs="format: compact",
    gold_answer=environment.gold_answer,
)
