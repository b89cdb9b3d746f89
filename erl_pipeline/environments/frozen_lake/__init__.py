"""FrozenLake without slipping, with symbols and action words that need not give their meaning away."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.environments.chat_prompts import ChatPrompts
from erl_pipeline.environments.frozen_lake import environment, tasks
from erl_pipeline.environments.frozen_lake.gold import gold_answer
from erl_pipeline.environments.frozen_lake.picture import attempt_picture
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tiny.extractor import experience_format, tiny_extractor
from erl_pipeline.environments.frozen_lake.tiny.parts import tiny_parts
from erl_pipeline.environments.frozen_lake.warm_start.parts import WARM_START
from erl_pipeline.environments.hidden_words.prompts import CompactPrompts
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.prompt_format import PromptFormat


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
    test_tasks=tasks.test_tasks,
    test_needs="test_boards: 256",
    tasks_from_file=tasks.tasks_from_file,
    prompts=_prompts,
    files=_files,
    packages=(
        "erl_pipeline.environments.hidden_words",
        "erl_pipeline.environments.chat_prompts",
        "erl_pipeline.environments.board_twins",
    ),
    task_key=tasks.board_key,
    kept_split=tasks.kept_split,
    twin_key=tasks.shape_key,
    left_out=tasks.left_out,
    tiny=tiny_parts,
    tiny_needs="format: compact",
    # Each demonstration draws its own world and a generated board, so these settings do not change it.
    tiny_exclude=frozenset({"world_seed", "task_file", "instructions"}),
    experience=experience_format,
    tiny_extractor=tiny_extractor,
    difficulty=tasks.difficulty,
    gold_answer=gold_answer,
    warm_start=WARM_START,
    picture=attempt_picture,
)
