"""An agent plays an episode once more, and gets the recorded answers of the policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Never

import numpy as np
import typer

from command_line.env.playing import ready_environment
from command_line.episodes.rows import agent_calls, find_episode, trajectory_paths
from command_line.output import counted, print_json, print_line
from command_line.selectors import manifests_of_run
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import Generation
from erl_pipeline.engines.probe_file import PROBE_FILE, read_facts
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from erl_pipeline.environments.messages import Message, opening
from erl_pipeline.episodes.agent_attempt import AgentAttempt, play_agent
from erl_pipeline.episodes.context import (
    EpisodeContext,
    EpisodeIdentity,
    EpisodeLimits,
    Provenance,
    SampleRequest,
    TurnKey,
    opening_messages,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.gateway.recorded import RecordedPolicy, recorded_answers
from erl_pipeline.episodes.gateway.server import Gateway
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.policies.checkpoints import BASE, MODEL, instruction_for, instruction_texts
from erl_pipeline.policies.tokenizers import load_tokenizer
from erl_pipeline.runs.config import run_config
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore
from storage.tables.agent_calls import AgentCall
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.trajectories import TRAJECTORIES, Trajectory, read_trajectories


@dataclass(frozen=True)
class RecordedAttempt:
    """An attempt of an agent: the row of its first sequence, those of the others, and its calls."""

    row: Trajectory
    further: Sequence[Trajectory]
    calls: Sequence[AgentCall]


@dataclass(frozen=True)
class ReplayedAttempt:
    """What came of it this time, beside what is recorded; `left` answers were not asked for."""

    trajectory_id: str
    role: str
    answers: int
    left: int
    reward: float | None
    recorded_reward: float | None
    ended: str
    recorded_ended: str

    @property
    def is_equal(self) -> bool:
        same = (self.reward, self.ended) == (self.recorded_reward, self.recorded_ended)
        return same and not self.left


def replay_episode(identifier: str, run: str | None, store: str, as_json: bool) -> None:
    """Let the agent play each attempt of an episode again, and print what is the same.

    Raises:
        InputError: there is no such episode, or no agent has played it.
        NotRepeated: the agent asks something that it did not ask before.
        typer.Exit: with status 1, where it ends otherwise.
    """
    artifacts = ArtifactStore(store)
    rows, holder = find_episode(trajectory_paths(artifacts, manifests_of_run(artifacts, run)), identifier)
    episode_id = rows[0]["episode_id"]
    artifact = artifacts.open(holder.artifact_id)
    calls = agent_calls(artifacts, holder, rows)
    attempts = _attempts(artifact, episode_id, calls)
    if not attempts:
        raise InputError(f"episode {episode_id} has no recorded calls of an agent, so it cannot be replayed")
    config = run_config(RunStore(store).open(holder.run))
    with ready_environment(config) as plugin:
        replayed = asyncio.run(_replayed(artifacts, artifact, config, plugin, attempts))
    equal = all(each.is_equal for each in replayed)
    if as_json:
        found = [asdict(each) for each in replayed]
        print_json({"episode_id": episode_id, "equal": equal, "attempts": found})
    else:
        print_line(f"Episode {episode_id}")
        for each in replayed:
            print_line(f"{each.role} {each.trajectory_id}: {_told(each)}")
    if not equal:
        raise typer.Exit(1)


def _told(attempt: ReplayedAttempt) -> str:
    given = f"{counted(attempt.answers - attempt.left, 'recorded answer')} given"
    left = f", {attempt.left} not asked for" if attempt.left else ""
    now, before = (
        ended if reward is None else f"reward {reward:g}"
        for reward, ended in (
            (attempt.reward, attempt.ended),
            (attempt.recorded_reward, attempt.recorded_ended),
        )
    )
    return f"{given}{left}; {now}, {'as recorded' if now == before else f'recorded was {before}'}"


def _attempts(
    artifact: Artifact, episode_id: str, calls: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[RecordedAttempt]:
    """The attempts of an episode that have calls, in order."""
    tables = [entry.path for entry in artifact.manifest.tables(TRAJECTORIES.name)]
    first, further = (
        [
            row
            for row in read_trajectories([artifact.path(name) for name in tables if pick(name)])
            if row.episode_id == episode_id
        ]
        for pick in (FURTHER_SEQUENCES.__ne__, FURTHER_SEQUENCES.__eq__)
    )
    return [
        RecordedAttempt(
            row,
            [each for each in further if each.parent_trajectory_id == row.trajectory_id],
            [AgentCall(attempt_id=row.trajectory_id, **call) for call in calls[row.trajectory_id]],
        )
        for row in first
        if row.trajectory_id in calls
    ]


async def _replayed(
    store: ArtifactStore,
    artifact: Artifact,
    config: RunConfig,
    plugin: EnvironmentPlugin[Any],
    attempts: Sequence[RecordedAttempt],
) -> list[ReplayedAttempt]:
    replayed = []
    async with Gateway() as gateway:
        row = attempts[0].row
        context, text = _episode(store, artifact, config, plugin, row, gateway)
        own = instruction_texts(store.open(row.policy_version))
        instructed = instruction_for(own, row.task_type) is not None
        try:
            for number, attempt in enumerate(attempts):
                # Nothing was inserted into the first attempt without an instruction. So what the agent says
                # now is compared; what was inserted into others is only known as a whole.
                plain = number == 0 and attempt.row.revision_index == 0 and not instructed
                answers = recorded_answers((attempt.row, *attempt.further), attempt.calls)
                policy = RecordedPolicy(answers, text)
                played = await play_agent(
                    replace(context, ask_policy=partial(_answer, policy)),
                    gateway,
                    TurnKey(attempt.row.role, 0, attempt.row.revision_index),
                    opening if plain else partial(_opening, attempt.row),
                )
                replayed.append(_compared(attempt.row, played, len(answers), policy.left))
        finally:
            await context.environment.close()
    return replayed


def _episode(
    store: ArtifactStore,
    artifact: Artifact,
    config: RunConfig,
    plugin: EnvironmentPlugin[Any],
    row: Trajectory,
    gateway: Gateway,
) -> tuple[EpisodeContext, Callable[[Sequence[int]], str]]:
    """The episode of a row, with its task and seeds, but without a policy; and what decodes tokens."""
    checkpoint = store.open(row.policy_version)
    base = checkpoint.manifest.inputs.get(BASE)
    model = checkpoint if base is None else store.open(base)
    facts = read_facts(model.path(PROBE_FILE))
    tokenizer = load_tokenizer(model.path(MODEL))
    chat = ChatTokenizer(tokenizer)
    method = plugins("methods")[config.method.type].value
    task = Task(row.task_id, row.task_type, row.environment, json.loads(row.task_payload))
    settings = plugin.episodes.for_template(config.environment, chat.knows_tools)
    provenance = Provenance(
        recipe_id=artifact.manifest.artifact_id,
        iteration=row.iteration,
        policy_versions={POLICY: row.policy_version},
        tokenizer_digest=row.tokenizer_digest,
        memory_version=row.memory_version,
        run_seed=artifact.manifest.seed,
    )
    context = EpisodeContext(
        identity=EpisodeIdentity(task, row.sample_index, provenance),
        environment=GuardedEnvironment(partial(plugin.open, settings, task), config.rollouts.step_seconds),
        chat=chat,
        limits=EpisodeLimits(
            context_length=facts.context_length,
            end_token_ids=frozenset(facts.end_token_ids),
            success_threshold=config.rollouts.success_threshold,
            step_seconds=config.rollouts.step_seconds,
            by_role=method.role_limits(method.episode_settings(config.method), config.sampling),
        ),
        ask_policy=_nobody,
        ask_memory=_nobody,
        gateway=gateway,
    )
    return context, tokenizer.decode


async def _answer(policy: RecordedPolicy, asked: SampleRequest) -> Generation:
    return await policy.ask(asked.request)


async def _nobody(asked: object) -> Never:
    raise TypeError("what was recorded is all that is answered")


def _opening(row: Trajectory, instructions: str, observation: str) -> Sequence[Message]:
    """The messages with which the attempt began, with the notes or the reflection that were in them."""
    return opening_messages(row)


def _compared(row: Trajectory, played: AgentAttempt, answers: int, left: int) -> ReplayedAttempt:
    scored = row.finish_reason == "done"
    return ReplayedAttempt(
        trajectory_id=row.trajectory_id,
        role=row.role,
        answers=answers,
        left=left,
        reward=None if played.result is None else float(np.float32(played.result.reward)),
        recorded_reward=row.reward if scored else None,
        ended="done" if played.failure is None else str(played.failure),
        recorded_ended="done" if scored else row.feedback,
    )
