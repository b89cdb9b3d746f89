"""HotpotQA: questions that need two pages of an encyclopedia, and a search tool that finds pages."""

from erl_pipeline.environments import interface
from erl_pipeline.environments.hotpotqa import environment, index, tasks
from erl_pipeline.environments.hotpotqa.environment import documents_in, gold_answer
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.tasks import files_in

ENVIRONMENT = interface.EnvironmentPlugin(
    settings=HotpotQAConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=environment.open_without_index,
    splits=interface.Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_share: 0.2",
        task_key=tasks.question_key,
        kept_split=tasks.kept_split,
    ),
    dependencies=interface.Dependencies(
        files=lambda settings: files_in(settings, "task_file", "passage_file"),
        packages=("erl_pipeline.environments.tasks",),
        built_files=interface.BuiltFiles(
            settings=index.index_settings, build=index.build, open=environment.open_with_index
        ),
    ),
    episodes=interface.EpisodeTraits(timing="waiting", for_template=environment.for_template),
    drawing=interface.AttemptDrawing(documents=documents_in),
    gold_answers=interface.GoldAnswers(gold_answer),
)
