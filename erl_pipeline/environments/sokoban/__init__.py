"""Sokoban, with symbols and action words that need not give their meaning away."""

from erl_pipeline.environments import interface
from erl_pipeline.environments.demonstrations import TinyPlayer
from erl_pipeline.environments.grid_games.hidden_words import CompactPrompts
from erl_pipeline.environments.grid_games.tasks import board_key, settings_files, shape_key
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.environments.sokoban.game import attempt_picture, open_sokoban
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import TASKS, gold_answer
from erl_pipeline.environments.sokoban.tiny import TINY


def _prompts(settings: SokobanConfig) -> PromptFormat | None:
    return CompactPrompts(settings.action_words) if settings.format == "compact" else None


def _quick_to_list(settings: SokobanConfig) -> bool:
    # A generated board takes milliseconds, since it has to be solved.
    return settings.task_file is not None or settings.training_boards <= 500


ENVIRONMENT = interface.EnvironmentPlugin(
    settings=SokobanConfig,
    training_tasks=TASKS.training_tasks,
    held_out_tasks=TASKS.held_out_tasks,
    open=open_sokoban,
    prompts=_prompts,
    splits=interface.Splits(
        test_tasks=TASKS.test_tasks,
        test_needs="test_boards: 256",
        task_key=board_key,
        kept_split=TASKS.kept_split,
        twin_key=shape_key,
        from_file=TASKS.tasks_from_file,
        left_out=TASKS.left_out,
        quick_to_list=_quick_to_list,
    ),
    dependencies=interface.Dependencies[SokobanConfig](
        files=settings_files,
        packages=("erl_pipeline.environments.grid_games", "erl_pipeline.environments.tasks"),
    ),
    tiny=TinyPlayer(
        parts=TINY.parts,
        needs="format: compact",
        # Each demonstration draws its own world and a generated board, so these settings do not change it.
        exclude=frozenset({"world_seed", "task_file", "instructions"}),
    ),
    drawing=interface.AttemptDrawing(picture=attempt_picture),
    gold_answers=interface.GoldAnswers(gold_answer),
)
