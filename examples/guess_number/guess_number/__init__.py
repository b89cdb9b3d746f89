"""Guess a number: each wrong guess is answered with `higher` or `lower`."""

from __future__ import annotations

from erl_pipeline.environments.demonstrations import TinyPlayer
from erl_pipeline.environments.interface import EnvironmentPlugin, GoldAnswers
from erl_pipeline.environments.prompt_format import PromptFormat
from guess_number import environment, game, tiny


def _prompts(settings: game.GuessNumberConfig) -> PromptFormat | None:
    return tiny.CompactPrompts(settings.largest) if settings.format == "compact" else None


ENVIRONMENT = EnvironmentPlugin(
    settings=game.GuessNumberConfig,
    training_tasks=game.training_tasks,
    held_out_tasks=game.held_out_tasks,
    open=environment.GuessNumber,
    prompts=_prompts,
    tiny=TinyPlayer(parts=tiny.tiny_parts, needs="format: compact"),
    gold_answers=GoldAnswers(environment.gold_answer),
)
