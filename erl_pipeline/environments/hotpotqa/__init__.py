"""HotpotQA: questions that need two pages of an encyclopedia, and a search tool that finds pages."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.environments.hotpotqa import environment, index, tasks
from erl_pipeline.environments.hotpotqa.environment import documents_in, gold_answer
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import (
    AttemptDrawing,
    BuiltFiles,
    Dependencies,
    EnvironmentPlugin,
    EpisodeTraits,
    GoldAnswers,
    Splits,
)


def _files(settings: HotpotQAConfig) -> dict[str, Path]:
    named = {"task_file": settings.task_file, "passage_file": settings.passage_file}
    return {name: Path(path) for name, path in named.items() if path is not None}


ENVIRONMENT = EnvironmentPlugin(
    settings=HotpotQAConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_without_index,
    splits=Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_share: 0.2",
        task_key=tasks.question_key,
        kept_split=tasks.kept_split,
    ),
    dependencies=Dependencies(
        files=_files,
        packages=("erl_pipeline.environments.tasks",),
        built_files=BuiltFiles(
            settings=index.index_settings, build=index.build, open=environment.open_with_index
        ),
    ),
    episodes=EpisodeTraits(timing="waiting", for_template=environment.for_template),
    drawing=AttemptDrawing(documents=documents_in),
    gold_answers=GoldAnswers(gold_answer),
)
