"""Agents as environments: a program of one's own that talks to an OpenAI-compatible address is trained as it
is."""

from collections.abc import Sequence

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments import interface
from erl_pipeline.environments.agent import attempts, functions, tasks
from erl_pipeline.environments.agent.settings import AgentConfig


def _file_settings(config: AgentConfig) -> AgentConfig:
    return AgentConfig(files=config.files)


def _used_packages(config: AgentConfig) -> Sequence[str]:
    """The package of the function, and those of the scorer."""
    scorer = plugins("scorers")[config.scorer].packages if config.reward == "scorer" else ()
    if config.function is None:
        return scorer
    functions.find_in_folder_of_call(config.function)
    return (*scorer, functions.package_of(config.function.partition(":")[0]))


def _training_tasks(config: AgentConfig, seed: int) -> Sequence[interface.Task]:
    """They are listed before anything begins, so a function that is not there is found then."""
    found = tasks.training_tasks(config, seed)
    if config.function is not None:
        functions.function_named(config.function)
    return found


class AgentPlugin(interface.EnvironmentPlugin[AgentConfig]):
    """An agent without files needs none built."""

    def built_files_of(self, settings: AgentConfig) -> interface.BuiltFiles | None:
        return self.dependencies.built_files if settings.files else None


ENVIRONMENT = AgentPlugin(
    settings=AgentConfig,
    training_tasks=_training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=attempts.open_agent,
    splits=interface.Splits(
        test_tasks=tasks.test_tasks,
        test_needs="test_share: 0.2",
        task_key=tasks.task_key,
        kept_split=tasks.kept_split,
        from_file=tasks.tasks_from_file,
    ),
    dependencies=interface.Dependencies(
        files=tasks.files,
        packages=("erl_pipeline.environments.tasks",),
        used_packages=_used_packages,
        built_files=interface.BuiltFiles(
            settings=_file_settings, build=attempts.build, open=attempts.open_with_files
        ),
    ),
    episodes=interface.EpisodeTraits(timing="waiting", played_by="agent"),
)
