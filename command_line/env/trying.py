"""A policy attempts one task, and what it was asked and said is shown."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from command_line.env.playing import chosen_task, print_messages, ready_environment
from command_line.output import counted, print_json, print_line
from erl_pipeline.config.loading import load_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.sources import environment_sources
from storage.errors import InputError
from storage.texts import read_json

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.interface import EnvironmentPlugin, Task
    from erl_pipeline.episodes.play import PlayedEpisodes
    from storage.tables.trajectories import Trajectory


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
        played = _play(resolved, plugin, task)
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


def _play(config: RunConfig, plugin: EnvironmentPlugin[Any], task: Task) -> PlayedEpisodes:
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
    policy = load_policy(traits.model, traits.dtype)
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
