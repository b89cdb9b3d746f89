"""A person attempts a task in the terminal."""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from command_line.output import counted, print_line
from erl_pipeline.config.loading import load_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from erl_pipeline.environments.messages import Message, ToolSchema
from erl_pipeline.episodes.attempt import HandPlayed
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure
from erl_pipeline.plan.sources import environment_sources
from storage.errors import InputError

_SEVERAL_LINES = '"""'
_CALL = "/call "
_HOW = (
    f"One line is one turn. {_SEVERAL_LINES} begins and ends a turn of several lines. "
    "Ctrl-D or Ctrl-C abandons the attempt."
)
_HOW_TO_CALL = 'Call a tool with /call NAME {"argument": ...}, or write the <tool_call> yourself.'


def play_task(
    config_file: Path, task_id: str | None, split: str, seed: int | None, settings: Sequence[str]
) -> None:
    """Let a person attempt a task: the one with an id, or one of a split, drawn by the seed.

    Raises InputError if there is no such task, typer.Exit when the attempt was abandoned or could not go on.
    """
    resolved = load_config(config_file, settings, {} if seed is None else {"--seed": ("seed", seed)})
    if plugins("environments")[resolved.environment.type].value.has_agents(resolved.environment):
        raise InputError(
            f"environment.type: {resolved.environment.type} is played by an agent, not by hand; "
            "`erl-pipeline env try` lets it play once"
        )
    environment_sources(resolved)  # a file that cannot be read is said before anything is shown
    chosen = chosen_task(resolved, split, task_id)
    print_line(f"Task {chosen.task_id} ({chosen.task_type})")
    with ready_environment(resolved) as plugin, asyncio.Runner() as runner:
        attempt = HandPlayed(plugin, resolved.environment, chosen, resolved.rollouts.step_seconds)
        try:
            _take_turns(runner, attempt, resolved.rollouts.success_threshold)
        except EnvironmentFailure as failure:
            where = f" ({failure.place})" if failure.place else ""
            print_line(f"\nThe environment failed: {failure}{where}")
            print_line("A policy's attempt would end here, and would not be scored.")
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            print_line("\nThe attempt was abandoned; it has no feedback.")
            raise typer.Exit(130) from None
        finally:
            runner.run(attempt.environment.close())


def _take_turns(runner: asyncio.Runner, attempt: HandPlayed, threshold: float) -> None:
    """Play the attempt from its prompt to its feedback, or to the end of the input."""
    opened = runner.run(attempt.begin())
    print_messages(opened.messages)
    _print_tools(opened.tools)
    print_line(f"\n({_HOW}{f' {_HOW_TO_CALL}' if opened.tools else ''})")
    turns = 0
    while (text := _read_turn()) is not None:
        turns += 1
        transition = runner.run(attempt.say(text))
        print_messages(transition.messages)
        if transition.reward and not transition.done:
            print_line(f"(reward {transition.reward:g})")
        if transition.done:
            print_line(f"\n[feedback]\n{runner.run(attempt.environment.feedback())}")
            outcome = "success" if attempt.reward >= threshold else "no success"
            print_line(f"\nReward {attempt.reward:g}: {outcome}, after {counted(turns, 'turn')}.")
            return
    print_line(f"\nThe attempt was abandoned after {counted(turns, 'turn')}; it has no feedback.")


def chosen_task(config: RunConfig, split: str, task_id: str | None) -> Task:
    """The task with an id, or one of the split, drawn by the seed. Raises InputError if there is none."""
    plugin = plugins("environments")[config.environment.type].value
    settings, seed = config.environment, config.seed
    splits: dict[str, Callable[[], Sequence[Task]]] = {
        "training": lambda: plugin.training_tasks(settings, seed),
        "held_out": lambda: plugin.held_out_tasks(settings, seed, config.evaluation.tasks),
        "test": lambda: plugin.splits.test_tasks(settings, seed),
    }
    if task_id is None:
        tasks = splits[split]()
        if not tasks:
            test_needs = plugin.splits.test_needs
            needs = f"; it needs {test_needs}" if split == "test" and test_needs else ""
            raise InputError(f"--split {split}: there is no such task with these settings{needs}")
        return random.Random(f"play/{seed}").choice(list(tasks))
    for make in splits.values():
        for each in make():
            if each.task_id == task_id:
                return each
    raise InputError(f"--task {task_id}: no training, held-out or test task has this id")


def _read_turn() -> str | None:
    """One turn from standard input; None at its end."""
    if sys.stdin.isatty():
        sys.stdout.write("\n> ")
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        return None
    text = line.removesuffix("\n")
    if text.strip() == _SEVERAL_LINES:
        lines: list[str] = []
        while (line := sys.stdin.readline()) and line.strip() != _SEVERAL_LINES:
            lines.append(line)
        return "".join(lines).removesuffix("\n")
    if text.startswith(_CALL):
        name, _, arguments = text.removeprefix(_CALL).strip().partition(" ")
        return f'<tool_call>{{"name": "{name}", "arguments": {arguments.strip() or "{}"}}}</tool_call>'
    return text


def print_messages(messages: Sequence[Message]) -> None:
    """Each message with its role, as a policy reads it, and its tool calls."""
    for message in messages:
        name = f" {message['name']}" if "name" in message else ""
        print_line(f"\n[{message['role']}{name}]\n{message['content']}")
        for call in message.get("tool_calls", []):
            function = call["function"]
            print_line(f"[calls {function['name']}] {json.dumps(function['arguments'], ensure_ascii=False)}")


def _print_tools(tools: Sequence[ToolSchema]) -> None:
    for tool in tools:
        function = tool["function"]
        print_line(f"\n[tool {function['name']}] {function.get('description', '')}")
        print_line(json.dumps(function.get("parameters", {}), ensure_ascii=False))


@contextmanager
def ready_environment(config: RunConfig) -> Iterator[EnvironmentPlugin[Any]]:
    """The environment of a configuration, inside this context. Files that it needs built, such as a search
    index, are built in a temporary folder."""
    plugin: EnvironmentPlugin[Any] = plugins("environments")[config.environment.type].value
    if plugin.built_files_of(config.environment) is None:
        yield plugin
        return
    from erl_pipeline.plan.stage import Resources, WorkerSettings
    from erl_pipeline.stages.tasks.environment_stages import ready_to_open

    print(f"Building what environment {config.environment.type} reads ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="erl-env-") as folder:
        files = Path(folder) / "files"
        files.mkdir()
        worker = WorkerSettings(folder, config.name, config.resources.threads)
        with Resources(worker) as resources:
            yield ready_to_open(plugin, config.environment, resources, files)
