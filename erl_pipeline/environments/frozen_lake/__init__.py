"""FrozenLake without slipping, with symbols and action words that need not give their meaning away."""

from __future__ import annotations

from erl_pipeline.environments.chat_prompts import ChatPrompts
from erl_pipeline.environments.frozen_lake.game import open_frozen_lake
from erl_pipeline.environments.frozen_lake.inspection import attempt_picture, gold_answer
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import STREAMS, TASKS, difficulty
from erl_pipeline.environments.frozen_lake.tiny import TINY, experience_format, tiny_extractor
from erl_pipeline.environments.frozen_lake.warm_start import WARM_START
from erl_pipeline.environments.grid_games.hidden_words import CompactPrompts
from erl_pipeline.environments.grid_games.tasks import board_key, settings_files, shape_key
from erl_pipeline.environments.interface import EnvironmentPlugin
from erl_pipeline.environments.prompt_format import PromptFormat


def _prompts(settings: FrozenLakeConfig) -> PromptFormat | None:
    if settings.format == "short":
        assert settings.prompts is not None
        return ChatPrompts(settings.prompts)
    return CompactPrompts(settings.action_words) if settings.format == "compact" else None


ENVIRONMENT = EnvironmentPlugin(
    settings=FrozenLakeConfig,
    training_tasks=TASKS.training_tasks,
    held_out_tasks=TASKS.held_out_tasks,
    open=open_frozen_lake,
    test_tasks=TASKS.test_tasks,
    test_needs="test_boards: 256",
    tasks_from_file=TASKS.tasks_from_file,
    prompts=_prompts,
    files=settings_files,
    packages=("erl_pipeline.environments.grid_games", "erl_pipeline.environments.chat_prompts"),
    task_key=board_key,
    kept_split=TASKS.kept_split,
    twin_key=shape_key,
    left_out=TASKS.left_out,
    tiny=TINY.parts,
    tiny_needs="format: compact",
    # Each demonstration draws its own world and a generated board, so these settings do not change it.
    tiny_exclude=frozenset({"world_seed", "task_file", "instructions"}),
    experience=experience_format,
    tiny_extractor=tiny_extractor,
    streams=STREAMS,
    difficulty=difficulty,
    gold_answer=gold_answer,
    warm_start=WARM_START,
    picture=attempt_picture,
)
