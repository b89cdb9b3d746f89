"""The tasks of a mixture, which are those of its parts under names that tell them apart, and the cold start
of a tiny policy for all of them."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from erl_pipeline.config.base import with_settings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.demonstrations import Demonstration, Examination, ExamQuestion, TinyParts
from erl_pipeline.environments.interface import (
    BuiltFiles,
    Embedders,
    Environment,
    MixturePart,
    Task,
    part_name,
)
from erl_pipeline.environments.mixture.settings import MixtureConfig
from storage.errors import InputError


def parts_of(settings: MixtureConfig) -> Mapping[str, MixturePart]:
    installed = plugins("environments")
    return {
        name: MixturePart(installed[part.environment.type].value, part.environment, part.weight)
        for name, part in settings.parts.items()
    }


def part_of(parts: Mapping[str, MixturePart], task: Task) -> tuple[MixturePart, Task]:
    """The part that a task of a mixture is of, and the task as that part made it.

    Raises `InputError` for a task that is of none.
    """
    name = part_name(task.task_id)
    if name not in parts:
        raise InputError(
            f"task {task.task_id} belongs to no part of the mixture, which has {', '.join(parts)}"
        )
    mark = f"{name}/"
    own = replace(task, task_id=task.task_id.removeprefix(mark), task_type=task.task_type.removeprefix(mark))
    return parts[name], own


def training_tasks(settings: MixtureConfig, seed: int) -> list[Task]:
    """All training tasks of all parts, part after part."""
    return [
        _named(name, part, task)
        for name, part in parts_of(settings).items()
        for task in part.plugin.training_tasks(part.settings, seed)
    ]


def held_out_tasks(settings: MixtureConfig, seed: int, count: int) -> list[Task]:
    """Held-out tasks of the parts, in proportion to their weights at every length of the list."""
    weights = {name: part.weight for name, part in settings.parts.items()}
    row = turns(weights, count)
    parts, counts = parts_of(settings), Counter(row)
    found: dict[str, Sequence[Task]] = {}
    for name, wanted in counts.items():
        found[name] = parts[name].plugin.held_out_tasks(parts[name].settings, seed, wanted)
        if len(found[name]) < wanted:
            raise InputError(
                f"environment.parts.{name}: it gives {len(found[name])} held-out tasks, but its weight asks "
                f"for {wanted}; lower evaluation.tasks or its weight"
            )
    upcoming = {name: iter(tasks) for name, tasks in found.items()}
    return [_named(name, parts[name], next(upcoming[name])) for name in row]


def test_tasks(settings: MixtureConfig, seed: int) -> list[Task]:
    """All test tasks of all parts; none unless each part has some, since a part that is not tested would go
    unnoticed."""
    found = {
        name: part.plugin.splits.test_tasks(part.settings, seed) for name, part in parts_of(settings).items()
    }
    if not all(found.values()):
        return []
    parts = parts_of(settings)
    return [_named(name, parts[name], task) for name, tasks in found.items() for task in tasks]


def files(settings: MixtureConfig) -> dict[str, Path]:
    """The files of the parts, by dotted keys."""
    return {
        f"parts.{name}.environment.{key}": path
        for name, part in parts_of(settings).items()
        for key, path in part.plugin.dependencies.files(part.settings).items()
    }


def left_out(settings: MixtureConfig) -> list[str]:
    """What of the parts' files is no task, by part."""
    return [
        f"{name}: {sentence}"
        for name, part in parts_of(settings).items()
        for sentence in part.plugin.splits.left_out(part.settings)
    ]


def quick_to_list(settings: MixtureConfig) -> bool:
    """Whether the tasks of each part are listed quickly."""
    return all(part.plugin.splits.quick_to_list(part.settings) for part in parts_of(settings).values())


def open_task(settings: MixtureConfig, task: Task) -> Environment:
    """The environment of the part that a task is of. Raises `InputError` for a task of no part."""
    part, own = part_of(parts_of(settings), task)
    opened: Environment = part.plugin.open(part.settings, own)
    return opened


def for_template(settings: MixtureConfig, knows_tools: bool) -> MixtureConfig:
    """The settings of each part as a policy's chat template allows. Raises `InputError` as the parts do."""
    return with_settings(
        settings,
        {
            f"parts.{name}.environment": part.plugin.episodes.for_template(part.settings, knows_tools)
            for name, part in parts_of(settings).items()
        },
    )


def _named(name: str, part: MixturePart, task: Task) -> Task:
    """A part's task as one of the mixture. Its `environment` is the part's type, so that rows of the same
    problem are recognised in any run."""
    return replace(
        task,
        task_id=f"{name}/{task.task_id}",
        task_type=f"{name}/{task.task_type}",
        environment=part.settings.type,
    )


def turns(weights: Mapping[str, float], count: int) -> list[str]:
    """The parts for `count` places in a row, in proportion to their weights at every length of the row.

    The next place goes to the part whose next turn comes first, where the k-th turn (from 0) of a part of
    weight w comes at (k + 1/2) / w (Webster's method); among equals it goes to the first part. A smaller
    `count` gives the beginning of the same list.
    """
    taken: Counter[str] = Counter()
    row = []
    for _ in range(count):
        name = min(weights, key=lambda each: (taken[each] + 0.5) / weights[each])
        taken[name] += 1
        row.append(name)
    return row


def building_settings(settings: MixtureConfig) -> MixtureConfig:
    """The parts that build files, each with the settings that its files depend on; other parts are left out,
    and all weights are 1."""
    parts = {
        name: settings.parts[name].model_copy(
            update={"environment": built.settings(part.settings), "weight": 1.0}
        )
        for name, part in parts_of(settings).items()
        if (built := part.plugin.dependencies.built_files) is not None
    }
    return settings.model_copy(update={"parts": parts})


def build(settings: MixtureConfig, folder: Path, embedders: Embedders) -> Mapping[str, int]:
    """Write the files of each part into the folder of its name; the counts begin with that name."""
    counts: dict[str, int] = {}
    for name, part in parts_of(settings).items():
        assert part.plugin.dependencies.built_files is not None
        own = folder / name
        own.mkdir()
        for what, count in part.plugin.dependencies.built_files.build(part.settings, own, embedders).items():
            counts[f"{name}_{what}"] = count
    return counts


def open_with_files(settings: MixtureConfig, task: Task, folder: Path, embedders: Embedders) -> Environment:
    """The environment of the part that a task is of, with the files of that part, if it has any."""
    part, own = part_of(parts_of(settings), task)
    built = part.plugin.dependencies.built_files
    if built is None:
        opened: Environment = part.plugin.open(part.settings, own)
        return opened
    return built.open(part.settings, own, folder / part_name(task.task_id), embedders)


BUILT_FILES = BuiltFiles(settings=building_settings, build=build, open=open_with_files)


def tiny_parts(settings: MixtureConfig) -> TinyParts | None:
    """What the parts need together; None where one of them has no form for a tiny policy.

    A word that several parts have is one token. Attempts that are told how another one failed are
    demonstrated only where all parts demonstrate them.
    """
    found: dict[str, TinyParts] = {}
    for name, part in parts_of(settings).items():
        tiny = part.plugin.tiny.parts(part.settings)
        if tiny is None:
            return None
        found[name] = tiny

    def demonstrations(
        generator: random.Random, config: ColdStartConfig
    ) -> Iterator[Sequence[Demonstration]]:
        streams = [
            tiny.demonstrations(random.Random(generator.getrandbits(64)), config) for tiny in found.values()
        ]
        while True:
            for stream in streams:
                yield next(stream)

    longest = max(tiny.context_length for tiny in found.values())
    with_retries = max(tiny.context_length + tiny.retry_tokens for tiny in found.values())
    all_retry = all(tiny.retry_tokens for tiny in found.values())
    return TinyParts(
        words=tuple(dict.fromkeys(word for tiny in found.values() for word in tiny.words)),
        context_length=longest if all_retry else with_retries,
        demonstrations=demonstrations,
        examinations=_examinations(found),
        retry_tokens=with_retries - longest if all_retry else 0,
    )


def tiny_view(settings: MixtureConfig) -> MixtureConfig:
    """The settings that the cold start depends on: those of each part's cold start, but not the weights."""
    parts = {
        name: settings.parts[name].model_copy(
            update={"environment": part.plugin.tiny.shown(part.settings), "weight": 1.0}
        )
        for name, part in parts_of(settings).items()
    }
    return settings.model_copy(update={"parts": parts})


def _examinations(found: Mapping[str, TinyParts]) -> list[Examination]:
    """The examinations of all parts. Those of one name are one, with the questions of all parts that have it:
    it reports the mean over questions."""
    by_name: dict[str, dict[str, Examination]] = {}
    for part, tiny in found.items():
        for each in tiny.examinations:
            by_name.setdefault(each.name, {})[part] = each
    return [_together(same) for same in by_name.values()]


def _together(same: Mapping[str, Examination]) -> Examination:
    """The examinations of several parts, by the part's name, as one."""
    first, *others = same.values()
    if not others:
        return first

    def questions(generator: random.Random, config: ColdStartConfig) -> list[ExamQuestion]:
        return [
            question
            for each in same.values()
            for question in each.questions(random.Random(generator.getrandbits(64)), config)
        ]

    otherwise = "; ".join(f"{part}: {each.otherwise}" for part, each in same.items())
    return Examination(first.name, questions, otherwise)
