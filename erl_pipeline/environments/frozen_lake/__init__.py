"""FrozenLake without slipping, with symbols and action words that need not give their meaning away."""

from erl_pipeline.environments import interface
from erl_pipeline.environments.demonstrations import TinyPlayer
from erl_pipeline.environments.frozen_lake.game import attempt_picture, open_frozen_lake
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS, difficulty, gold_answer
from erl_pipeline.environments.frozen_lake.tiny import TINY, experience_format, tiny_extractor
from erl_pipeline.environments.frozen_lake.warm_start import WARM_START
from erl_pipeline.environments.grid_games.hidden_words import CompactPrompts
from erl_pipeline.environments.grid_games.tasks import board_key, settings_files, shape_key
from erl_pipeline.environments.prompt_format import ChatPrompts, PromptFormat


def _prompts(settings: FrozenLakeConfig) -> PromptFormat | None:
    if settings.format == "short":
        assert settings.prompts is not None
        return ChatPrompts(settings.prompts)
    return CompactPrompts(settings.action_words) if settings.format == "compact" else None


ENVIRONMENT = interface.EnvironmentPlugin(
    settings=FrozenLakeConfig,
    training_tasks=TASKS.training_tasks,
    held_out_tasks=TASKS.held_out_tasks,
    open=open_frozen_lake,
    prompts=_prompts,
    splits=interface.Splits(
        test_tasks=TASKS.test_tasks,
        test_needs="test_boards: 256",
        task_key=board_key,
        kept_split=TASKS.kept_split,
        twin_key=shape_key,
        from_file=TASKS.tasks_from_file,
        left_out=TASKS.left_out,
        difficulty=difficulty,
    ),
    dependencies=interface.Dependencies[FrozenLakeConfig](
        files=settings_files,
        packages=(
            "erl_pipeline.environments.grid_games",
            "erl_pipeline.environments.prompt_format",
            "erl_pipeline.environments.tasks",
        ),
    ),
    tiny=TinyPlayer(
        parts=TINY.parts,
        needs="format: compact",
        # Each demonstration draws its own world and a generated board, so these settings do not change it.
        exclude=frozenset({"world_seed", "task_file", "instructions"}),
        extractor=tiny_extractor,
        experience=experience_format,
    ),
    warm_start=WARM_START,
    drawing=interface.AttemptDrawing(picture=attempt_picture),
    gold_answers=interface.GoldAnswers(gold_answer),
)
