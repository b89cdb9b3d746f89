"""Several environments in one run: each task is of one of them."""

from collections.abc import Mapping

from erl_pipeline.environments import interface
from erl_pipeline.environments.demonstrations import TinyPlayer
from erl_pipeline.environments.mixture import tasks
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.environments.mixture.tasks import BUILT_FILES, tiny_parts, tiny_view


class MixturePlugin(interface.EnvironmentPlugin[MixtureConfig]):
    """An environment whose tasks are those of its parts."""

    def parts(self, settings: MixtureConfig) -> Mapping[str, interface.MixturePart]:
        return tasks.parts_of(settings)

    def part(
        self, settings: MixtureConfig, task: interface.Task
    ) -> tuple[interface.MixturePart, interface.Task]:
        return tasks.part_of(tasks.parts_of(settings), task)

    def built_files_of(self, settings: MixtureConfig) -> interface.BuiltFiles | None:
        built = (part.plugin.built_files_of(part.settings) for part in self.parts(settings).values())
        return self.dependencies.built_files if any(each is not None for each in built) else None

    def timing_of(self, settings: MixtureConfig) -> interface.Timing:
        timings = {part.plugin.timing_of(part.settings) for part in self.parts(settings).values()}
        return "waiting" if "waiting" in timings else self.episodes.timing


ENVIRONMENT = MixturePlugin(
    settings=MixtureConfig,
    training_tasks=tasks.training_tasks,
    held_out_tasks=tasks.held_out_tasks,
    open=tasks.open_task,
    splits=interface.Splits(
        test_tasks=tasks.test_tasks,
        test_needs="a test split of each part",
        left_out=tasks.left_out,
        quick_to_list=tasks.quick_to_list,
    ),
    dependencies=interface.Dependencies(files=tasks.files, built_files=BUILT_FILES),
    episodes=interface.EpisodeTraits(for_template=tasks.for_template),
    tiny=TinyPlayer(parts=tiny_parts, needs="parts that each have a form for it", view=tiny_view),
)
