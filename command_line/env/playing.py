"""A task of an environment is attempted: by a person in the terminal, or once by the pretrained policy."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import typer

from command_line.output import counted, print_json, print_line
from erl_pipeline.config.loading import load_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from erl_pipeline.environments.messages import Message, ToolSchema
from erl_pipeline.episodes.attempt import HandPlayed
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure
from erl_pipeline.plan.sources import environment_sources
from storage.errors import InputError
from storage.texts import read_json

if TYPE_CHECKING:
    from erl_pipeline.episodes.play import PlayedEpisodes
    from storage.tables.trajectories import Trajectory

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

    print(f"Preparing the files of environment {config.environment.type} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="erl-env-") as folder:
        files = Path(folder) / "files"
        files.mkdir()
        worker = WorkerSettings(folder, config.name, config.resources.threads)
        with Resources(worker) as resources:
            yield ready_to_open(plugin, config.environment, resources, files)


def try_task(
    config_file: Path, task_id: str | None, split: str, seed: int | None, settings: Sequence[str], json: bool
) -> None:
    """Let the pretrained policy of a configuration attempt a task once, in this process, and print each of
    its token sequences.

    Raises InputError if there is no such task, or no pretrained policy.
    """
    resolved = load_config(config_file, settings, {} if seed is None else {"--seed": ("seed", seed)})
    environment_sources(resolved)  # a file that cannot be read is said before a model is loaded
    task = chosen_task(resolved, split, task_id)
    with ready_environment(resolved) as plugin:
        played = _play_once(resolved, plugin, task)
    (row,) = played.rows
    sequences, metrics = [row, *played.further], read_json(row.metrics)
    if json:
        print_json(
            {
                "task_id": task.task_id,
                "task_type": task.task_type,
                "sequences": list(map(_sequence, sequences)),
                "reward": row.reward,
                "finish_reason": row.finish_reason,
                "feedback": row.feedback,
                "metrics": metrics,
            }
        )
        return
    print_line(f"Task {task.task_id} ({task.task_type})")
    for number, sequence in enumerate(sequences, start=1):
        shown = _sequence(sequence)
        print_line(
            f"\nSequence {number} of {len(sequences)}: {counted(shown['prompt_tokens'], 'token')} of prompt, "
            f"{counted(shown['sampled_tokens'], 'token')} sampled, "
            f"{counted(shown['other_tokens'], 'token')} between"
        )
        print_messages(shown["messages"])
    print_line(f"\n[feedback]\n{row.feedback}")
    told = ", ".join(f"{name} {value:g}" for name, value in metrics.items())
    print_line(f"\nReward {row.reward:g}, {row.finish_reason}{f' ({told})' if told else ''}.")


def _play_once(config: RunConfig, plugin: EnvironmentPlugin[Any], task: Task) -> PlayedEpisodes:
    # torch and transformers, which take seconds to import.
    from erl_pipeline.engines.interface import EngineCall, SampledModel
    from erl_pipeline.episodes.context import EpisodeLimits, Provenance
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.episodes.play import BatchSampling, EpisodeSetup, play_episodes, protocol_of
    from erl_pipeline.plan.plan import POLICY
    from erl_pipeline.plan.stage import Listener, Resources, StageProgress, WorkerSettings
    from erl_pipeline.policies.checkpoints import policy_traits
    from erl_pipeline.policies.pretrained import load_policy

    traits = policy_traits(config.policy)
    if traits.model is None:
        raise InputError(
            f"policy.type: {config.policy.type}; only a pretrained policy can try a task without a run"
        )
    policy = load_policy(traits.model, traits.dtype, template_arguments=traits.template_arguments)
    chat = ChatTokenizer(policy.tokenizer)
    method = plugins("methods")[config.method.type].value
    episode = method.episode_settings(config.method)
    setup = EpisodeSetup(
        plugin=plugin,
        settings=plugin.episodes.for_template(config.environment, chat.knows_tools),
        protocol=protocol_of(
            plugin,
            config.environment,
            lambda prompts: method.open_episode(episode, prompts, first_only=True, retrieval=False),
        ),
        chat=chat,
        limits=EpisodeLimits(
            context_length=policy.context_length,
            end_token_ids=policy.eos_token_ids,
            success_threshold=config.rollouts.success_threshold,
            step_seconds=config.rollouts.step_seconds,
            by_role=method.role_limits(episode, config.sampling),
        ),
        provenance=Provenance("", 0, {POLICY: traits.model}, policy.tokenizer_digest, "", config.seed),
    )
    engine = plugins("engines")["transformers"].value
    with (
        tempfile.TemporaryDirectory(prefix="erl-env-") as folder,
        Resources(WorkerSettings(folder, config.name, config.resources.threads)) as resources,
    ):
        model = SampledModel(POLICY, traits.model, load=lambda: policy, served=_is_not_served)
        news = StageProgress("try", Listener(), resources.stop)
        opened = engine.open(engine.settings(), model, EngineCall(resources, news, news.stop))
        return play_episodes(setup, [task], range(1), BatchSampling(opened.batches))


def _is_not_served() -> Never:
    raise TypeError("the engine is in this process")


def _sequence(row: Trajectory) -> dict[str, Any]:
    """A token sequence as people read it; `other_tokens` are those between what was sampled."""
    sampled = sum(row.response_mask)
    return {
        "trajectory_id": row.trajectory_id,
        "prompt_tokens": len(row.prompt_token_ids),
        "sampled_tokens": sampled,
        "other_tokens": len(row.response_mask) - sampled,
        "messages": read_json(row.messages),
    }
