"""`erl-pipeline env show`: one environment's settings, abilities and, for a configuration, its tasks."""

import asyncio
import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from command_line.env.playing import ready_environment
from command_line.output import print_json, print_line, print_table
from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.loading import load_config
from erl_pipeline.config.plugins import Plugin, plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import describe_settings
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from erl_pipeline.episodes.attempt import HandPlayed
from erl_pipeline.plan.sources import environment_sources
from erl_pipeline.software import missing_of_extra
from storage.errors import InputError


def show_environment(given: str, settings: Sequence[str], json: bool) -> None:
    """Print what is known of an environment, by its type or by a configuration that has one."""
    known = plugins("environments")
    config = None
    if given in known.found:
        if settings:
            raise InputError("--set changes a configuration: give one instead of a type")
        plugin = known[given]
    elif any(each.type == given for each in known.broken):
        plugin = known[given]
    else:
        config = _configuration(given, settings, list(known.found))
        environment_sources(config)  # a file that cannot be read is said before anything is shown
        plugin = known[config.environment.type]
    settings_of = [asdict(each) for each in describe_settings(plugin.settings) if each.key != "type"]
    about = {**_described(plugin), "about": " ".join((plugin.settings.__doc__ or "").split())}
    shown = {**about, "settings": settings_of, **_abilities(plugin, config)}
    if config is not None:
        messages, tools, task_id = _first(plugin, config)
        shown["tools"] = [tool["function"]["name"] for tool in tools]
        shown["tasks"] = {**_tasks(plugin, config), "first": {"task_id": task_id, "messages": messages}}
    if json:
        print_json(shown)
        return
    _print(shown)


def _configuration(given: str, settings: Sequence[str], types: list[str]) -> RunConfig:
    if not Path(given).exists() and not given.endswith((".yaml", ".yml")):
        raise InputError(
            f"{given} is neither a type of environment nor a configuration file; there are {', '.join(types)}"
        )
    return load_config(Path(given), settings)


def _abilities(plugin: Plugin, config: RunConfig | None) -> dict[str, Any]:
    """What the environment can do with the settings of a configuration, or with its defaults; a value of None
    cannot be known without a configuration."""
    value = plugin.value
    found: dict[str, Any] = {
        "timing": value.episodes.timing,
        "gold_answers": value.gold_answers is not None,
        "task_files": value.splits.from_file is not None,
        "tools": None,
        "tiny": None,
        "test_tasks": None,
        "test_needs": value.splits.test_needs,
        "tiny_needs": value.tiny.needs,
    }
    try:
        settings = (
            plugin.settings.model_validate({"type": plugin.type}) if config is None else config.environment
        )
    except ValidationError:
        return found
    found["timing"] = value.timing_of(settings)
    found["tiny"] = value.tiny.parts(settings) is not None
    if config is not None:
        found["test_tasks"] = len(value.splits.test_tasks(settings, config.seed))
    return found


def _tasks(plugin: Plugin, config: RunConfig) -> dict[str, Any]:
    """How many tasks there are of each split, how many of them have a twin in training, and what is left out;
    no twins are counted where the environment knows of none."""
    settings, seed = config.environment, config.seed
    training = plugin.value.training_tasks(settings, seed)
    others = {
        "held_out": plugin.value.held_out_tasks(settings, seed, config.evaluation.tasks),
        "test": plugin.value.splits.test_tasks(settings, seed),
    }
    twins = {split: _with_twin(plugin.value, settings, tasks, training) for split, tasks in others.items()}
    return {
        "training": len(training),
        **{split: len(tasks) for split, tasks in others.items()},
        "twins": None if None in twins.values() else twins,
        "left_out": list(plugin.value.splits.left_out(settings)),
    }


def _with_twin(
    plugin: EnvironmentPlugin[Any], settings: PluginSettings, tasks: Sequence[Task], others: Sequence[Task]
) -> int | None:
    """How many of the tasks are a twin of another one of `others`; None where no task can have any."""

    def key(task: Task) -> str | None:
        part, own = plugin.part(settings, task)
        twin_key = part.plugin.splits.twin_key
        return None if twin_key is None else f"{own.environment} {twin_key(own.payload)}"

    keys = {key(task) for task in others} - {None}
    return sum(key(task) in keys for task in tasks) if keys else None


def _first(plugin: Plugin, config: RunConfig) -> tuple[list[Any], list[Any], str]:
    """The prompt of the first held-out task as messages, its tools, and its id."""
    tasks = plugin.value.held_out_tasks(config.environment, config.seed, 1)
    if not tasks:
        raise InputError(f"environment {plugin.type} gives no held-out task with these settings")

    async def begin(ready: EnvironmentPlugin[Any]) -> tuple[list[Any], list[Any], str]:
        attempt = HandPlayed(ready, config.environment, tasks[0], config.rollouts.step_seconds)
        try:
            opened = await attempt.begin()
        finally:
            await attempt.environment.close()
        return [dict(each) for each in opened.messages], list(opened.tools), tasks[0].task_id

    with ready_environment(config) as ready:
        return asyncio.run(begin(ready))


def _print(shown: dict[str, Any]) -> None:
    print_line(f"{shown['type']} ({shown['distribution']} {shown['version']})")
    print_line(shown["about"])
    if shown["missing"]:
        print_line(f"Missing: {', '.join(shown['missing'])}")
    print_line("\nSettings")
    for each in shown["settings"]:
        default = "required" if each["required"] else f"default {_plain(each['default'])}"
        print_line(f"  {each['key']}: {each['type']} ({default})")
        if each["text"]:
            print_line(f"      {each['text']}")
    print_line("\nWhat it has")
    for name, words in _words(shown):
        print_line(f"  {name + ':':<14}{words}")
    if "tasks" in shown:
        tasks = shown["tasks"]
        numbers = ", ".join(f"{tasks[split]:,} {words}" for split, words in _SPLITS)
        print_line(f"\nTasks: {numbers}")
        if tasks["twins"] is not None:
            twins = " and ".join(
                f"{tasks['twins'][split]:,} of {tasks[split]:,} {words}"
                for split, words in _SPLITS
                if split in tasks["twins"] and tasks[split]
            )
            print_line(f"Twins: {twins} tasks are training tasks turned or mirrored")
        for sentence in tasks["left_out"]:
            print_line(f"Left out: {sentence}")
        print_line(f"How task {tasks['first']['task_id']} begins, as the policy sees it:")
        for message in tasks["first"]["messages"]:
            print_line(f"\n[{message['role']}]\n{message['content']}")


_SPLITS = (("training", "training"), ("held_out", "held-out"), ("test", "test"))


def _words(shown: dict[str, Any]) -> list[tuple[str, str]]:
    unknown = "depends on the settings: give a configuration"
    tools, test = shown["tools"], shown["test_tasks"]
    tiny = unknown if shown["tiny"] is None else "yes" if shown["tiny"] else "not with these settings"
    none = f"none; they need {shown['test_needs']}" if shown["test_needs"] else "none"
    return [
        ("tools", unknown if tools is None else ", ".join(tools) or "none"),
        ("tiny form", f"{tiny}{f'; it needs {needs}' if (needs := shown['tiny_needs']) else ''}"),
        ("test tasks", unknown if test is None else f"{test:,}" if test else none),
        ("task files", "yes" if shown["task_files"] else "no"),
        ("gold answers", "yes" if shown["gold_answers"] else "no"),
        ("timing", shown["timing"]),
    ]


def _plain(value: Any) -> str:
    return json_format.dumps(value, ensure_ascii=False)


def list_environments(json: bool) -> None:
    """Print the installed environments, the package of each, and what it still needs."""
    group = plugins("environments")
    found = [_described(plugin) for plugin in group.found.values()]
    if json:
        broken = [
            {"type": each.type, "distribution": each.distribution, "problem": each.problem}
            for each in group.broken
        ]
        print_json({"environments": found, "broken": broken})
        return
    print_table(
        [
            {
                "type": each["type"],
                "package": f"{each['distribution']} {each['version']}",
                "what it is": each["about"],
                "needs": _needs(each),
            }
            for each in found
        ],
        left=("type", "package", "what it is", "needs"),
    )
    for problem in group.broken:
        print_line(f"{problem.type} of package {problem.distribution} cannot be used: {problem.problem}")
    print_line("Look at one: erl-pipeline env show TYPE")


def _described(plugin: Plugin) -> dict[str, Any]:
    return {
        "type": plugin.type,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "about": (plugin.settings.__doc__ or "").strip().partition("\n")[0],
        "extra": plugin.value.dependencies.extra,
        "missing": missing_of_extra(plugin.distribution, plugin.value.dependencies.extra),
    }


def _needs(described: dict[str, Any]) -> str:
    """The command that installs what is missing; empty if nothing is."""
    if not described["missing"]:
        return ""
    return f"pip install '{described['distribution']}[{described['extra']}]'"
