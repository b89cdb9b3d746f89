"""FrozenLake without slipping, with symbols and action words that need not give their meaning away."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.environments.chat_prompts import ChatPrompts
from erl_pipeline.environments.dependencies import Dependencies
from erl_pipeline.environments.frozen_lake import environment, tasks
from erl_pipeline.environments.frozen_lake.gold import gold_answer
from erl_pipeline.environments.frozen_lake.picture import attempt_picture
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tiny.extractor import experience_format, tiny_extractor
from erl_pipeline.environments.frozen_lake.tiny.parts import tiny_parts
from erl_pipeline.environments.frozen_lake.warm_start.parts import WARM_START
from erl_pipeline.environments.gold_answers import GoldAnswers
from erl_pipeline.environments.hidden_words.prompts import CompactPrompts
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.pictures import AttemptDrawing
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.environments.splits import Splits
from erl_pipeline.environments.tiny_parts import TinyPlayer


def _prompts(settings: FrozenLakeConfig) -> PromptFormat | None:
    if settings.format == "short":
        assert settings.prompts is not None
        return ChatPrompts(settings.prompts)
    return CompactPrompts(settings.action_words) if settings.format == "compact" else None


def _files(settings: FrozenLakeConfig) -> dict[str, Path]:
    named = {"task_file": settings.task_file, "held_out_file": settings.held_out_file}
    return {name: Path(file) for name, file in named.items() if file is not None}


ENVIRONMENT = EnvironmentPlugin(
    settings=FrozenLakeConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_frozen_lake,
    prompts=_prompts,
    splits=Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_boards: 256",
        task_key=tasks.board_key,
        kept_split=tasks.kept_split,
        twin_key=tasks.shape_key,
        from_file=tasks.tasks_from_file,
        left_out=tasks.left_out,
        difficulty=tasks.difficulty,
    ),
    dependencies=Dependencies(
        files=_files,
        packages=(
            "erl_pipeline.environments.hidden_words",
            "erl_pipeline.environments.chat_prompts",
            "erl_pipeline.environments.board_twins",
        ),
    ),
    tiny=TinyPlayer(
        parts=tiny_parts,
        needs="format: compact",
        # Each demonstration draws its own world and a generated board, so these settings do not change it.
        exclude=frozenset({"world_seed", "task_file", "instructions"}),
        extractor=tiny_extractor,
        experience=experience_format,
    ),
    warm_start=WARM_START,
    drawing=AttemptDrawing(picture=attempt_picture),
    gold_answers=GoldAnswers(gold_answer),
)
