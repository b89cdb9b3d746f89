"""Sokoban, with symbols and action words that need not give their meaning away."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.environments.dependencies import Dependencies
from erl_pipeline.environments.gold_answers import GoldAnswers
from erl_pipeline.environments.hidden_words.prompts import CompactPrompts
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.pictures import AttemptDrawing
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.environments.sokoban import environment, tasks
from erl_pipeline.environments.sokoban.gold import gold_answer
from erl_pipeline.environments.sokoban.picture import attempt_picture
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tiny.parts import tiny_parts
from erl_pipeline.environments.splits import Splits
from erl_pipeline.environments.tiny_parts import TinyPlayer


def _prompts(settings: SokobanConfig) -> PromptFormat | None:
    return CompactPrompts(settings.action_words) if settings.format == "compact" else None


def _files(settings: SokobanConfig) -> dict[str, Path]:
    named = {"task_file": settings.task_file, "held_out_file": settings.held_out_file}
    return {name: Path(file) for name, file in named.items() if file is not None}


def _quick_to_list(settings: SokobanConfig) -> bool:
    # A generated board takes milliseconds, since it has to be solved.
    return settings.task_file is not None or settings.training_boards <= 500


ENVIRONMENT = EnvironmentPlugin(
    settings=SokobanConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_sokoban,
    prompts=_prompts,
    splits=Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_boards: 256",
        task_key=tasks.board_key,
        kept_split=tasks.kept_split,
        twin_key=tasks.shape_key,
        from_file=tasks.tasks_from_file,
        left_out=tasks.left_out,
        quick_to_list=_quick_to_list,
    ),
    dependencies=Dependencies(
        files=_files,
        packages=("erl_pipeline.environments.hidden_words", "erl_pipeline.environments.board_twins"),
    ),
    tiny=TinyPlayer(
        parts=tiny_parts,
        needs="format: compact",
        # Each demonstration draws its own world and a generated board, so these settings do not change it.
        exclude=frozenset({"world_seed", "task_file", "instructions"}),
    ),
    drawing=AttemptDrawing(picture=attempt_picture),
    gold_answers=GoldAnswers(gold_answer),
)
