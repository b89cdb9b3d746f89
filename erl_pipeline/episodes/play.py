"""Playing episodes of tasks with an engine: what rollouts and evaluation have in common."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import nlargest
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from erl_pipeline.config.base import Settings
from erl_pipeline.engines.interface import AsynchronousEngine, GenerationEngine
from erl_pipeline.environments.interface import EnvironmentPlugin, Task, Timing, part_name
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.episodes import loop
from erl_pipeline.episodes.context import (
    AskMemory,
    AskPolicy,
    EpisodeContext,
    EpisodeIdentity,
    EpisodeLimits,
    EpisodeProtocol,
    Provenance,
    Retrieve,
    nothing_remembered,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.policies.checkpoints import instruction_for
from storage.artifacts.manifest import Determinism
from storage.errors import EnvironmentFailed, InputError
from storage.tables.trajectories import Trajectory
from storage.texts import REPLACED_TEXTS

if TYPE_CHECKING:
    from erl_pipeline.engines.chat_server import ChatServer
    from erl_pipeline.engines.interface import Generation
    from erl_pipeline.episodes.context import RetrievalRequest, SampleRequest
    from erl_pipeline.episodes.gateway.server import Gateway
    from storage.memory.view import MemoryHit
    from storage.tables.agent_calls import AgentCall

RETRIED = "attempts_retried"
"""Counter: how often an attempt was played again because the environment had failed."""


@dataclass(frozen=True)
class EpisodeSetup:
    """What all episodes of a shard have in common: environment with its settings, protocol, tokenizer, and
    the model outside the engine that the protocol asks, if any."""

    plugin: EnvironmentPlugin[Any]
    settings: Settings
    protocol: EpisodeProtocol
    chat: ChatTokenizer
    limits: EpisodeLimits
    provenance: Provenance
    withhold: float = 0.0
    """Share of a group's samples that see no memory."""
    chat_server: ChatServer | None = None
    instructions: Mapping[str, str] = field(default_factory=dict)
    """The policy's own by type of task, where its method has any."""

    @cached_property
    def gateway(self) -> Gateway | None:
        """Where agents ask the policy; None where none play. It is entered for each batch of episodes."""
        if not self.plugin.has_agents(self.settings):
            return None
        # It imports a web server, which other episodes do without.
        from erl_pipeline.episodes.gateway.server import Gateway

        return Gateway()

    @property
    def timing(self) -> Timing:
        """Whether the environment, or a part of a mixture, ever waits."""
        return self.plugin.timing_of(self.settings)


def protocol_of(
    plugin: EnvironmentPlugin[Any],
    settings: Any,
    with_prompts: Callable[[PromptFormat | None], EpisodeProtocol],
) -> EpisodeProtocol:
    """The protocol of an environment's episodes; in a mixture each part has prompts of its own."""
    parts = plugin.parts(settings)
    if not parts:
        return with_prompts(plugin.prompts(settings))
    of_part = {name: with_prompts(part.plugin.prompts(part.settings)) for name, part in parts.items()}
    return lambda context: of_part[part_name(context.identity.task.task_id)](context)


@dataclass(frozen=True)
class BatchSampling:
    """An engine that takes batches. Its own calls count tokens, and end when the run is stopped."""

    engine: GenerationEngine
    max_in_flight: int = 256
    """Most episodes under way. With an environment that is `instant`, all are under way."""


@dataclass(frozen=True)
class ConcurrentSampling:
    """An engine that takes single turns and has many under way."""

    engine: AsynchronousEngine
    max_in_flight: int
    on_tokens: Callable[[int], None] = lambda count: None


@dataclass(frozen=True)
class PlayedEpisodes:
    """The trajectories, episode by episode, and counters: attempts that were played again, failures of judges
    and of closing environments, texts from outside in which a character was replaced. Failed attempts are in
    the rows.

    `further` are token sequences of agents' attempts beside the first, whose row is their parent; `calls` are
    what agents asked.
    `determinism` is what the environment's timing and a chat server allow; the engine may allow less.
    `environment` is what a manifest is to say about how they were sampled.
    """

    rows: list[Trajectory]
    counters: dict[str, int]
    determinism: Determinism
    further: Sequence[Trajectory] = ()
    calls: Sequence[AgentCall] = ()
    environment: dict[str, str] = field(default_factory=dict)


class ShardEpisodes:
    """The episodes of a shard, one for each task and sample index, before they are played and after.

    `samples` are the indices of every task, or a sequence with those of each task.
    """

    def __init__(self, setup: EpisodeSetup, tasks: Sequence[Task], samples: range | Sequence[range]) -> None:
        of_each = [samples] * len(tasks) if isinstance(samples, range) else samples
        self._setup = setup
        self._identities = [
            EpisodeIdentity(task, sample, setup.provenance)
            for task, own in zip(tasks, of_each, strict=True)
            for sample in own
        ]
        self._contexts: dict[int, EpisodeContext] = {}
        self._replaced_before = setup.chat.texts.replaced
        self.to_play = loop.EpisodeSet(
            [partial(_episode, setup, identity, self._contexts) for identity in self._identities]
        )

    def played(self, results: Sequence[list[Trajectory]]) -> PlayedEpisodes:
        """What came of them. Raises `EnvironmentFailed` when all environments failed."""
        setup = self._setup
        begun = [self._contexts[index] for index in sorted(self._contexts)]
        environments = {index: each.environment for index, each in self._contexts.items()}
        _raise_when_all_failed(self._identities, environments)
        rows = [row for episode in results for row in episode]
        counters = {
            RETRIED: sum(each.renewed for each in environments.values()),
            "environment_close_failures": sum(each.close_failed for each in environments.values()),
            "judge_errors": sum(row.finish_reason == "judge_error" for row in rows),
            "judge_timeouts": sum(row.finish_reason == "judge_timeout" for row in rows),
            REPLACED_TEXTS: setup.chat.texts.replaced
            - self._replaced_before
            + sum(each.texts.replaced for each in environments.values()),
        }
        return PlayedEpisodes(
            rows=rows,
            counters={name: count for name, count in counters.items() if count},
            determinism=(
                "bytes" if setup.timing == "instant" and setup.chat_server is None else "approximate"
            ),
            further=[row for context in begun for row in context.further_sequences],
            calls=[call for context in begun for call in context.agent_calls],
        )


def play_episodes(
    setup: EpisodeSetup,
    tasks: Sequence[Task],
    samples: range | Sequence[range],
    sampling: BatchSampling | ConcurrentSampling,
    retrieve: Retrieve = nothing_remembered,
    *,
    on_episode: Callable[[list[Trajectory]], None] = lambda rows: None,
    stop: threading.Event | None = None,
) -> PlayedEpisodes:
    """Play one episode for each task and sample index.

    A failure of an environment ends its episode and is recorded. Raises `EnvironmentFailed` when all
    environments failed, `Interrupted` once `stop` is set, and what the engine raises.
    """
    episodes = ShardEpisodes(setup, tasks, samples)
    stop = stop or threading.Event()
    return episodes.played(_run(episodes.to_play, setup, sampling, retrieve, on_episode, stop))


async def _episode(
    setup: EpisodeSetup,
    identity: EpisodeIdentity,
    contexts: dict[int, EpisodeContext],
    index: int,
    answers: loop.Answers,
) -> list[Trajectory]:
    context = _context(setup, identity, partial(answers.sample, index), partial(answers.retrieve, index))
    contexts[index] = context
    try:
        return await setup.protocol(context)
    finally:
        await context.environment.close()


def _context(
    setup: EpisodeSetup, identity: EpisodeIdentity, ask_policy: AskPolicy, ask_memory: AskMemory
) -> EpisodeContext:
    part, _ = setup.plugin.part(setup.settings, identity.task)
    # A mixture opens its parts with the files that they have built.
    opened = partial(setup.plugin.open, setup.settings, identity.task)
    return EpisodeContext(
        identity=identity,
        environment=GuardedEnvironment(opened, setup.limits.step_seconds),
        chat=setup.chat,
        limits=setup.limits,
        ask_policy=ask_policy,
        ask_memory=ask_memory,
        mean_metrics=part.plugin.episodes.mean_metrics,
        withhold=setup.withhold,
        chat_server=setup.chat_server,
        instruction=instruction_for(setup.instructions, identity.task.task_type),
        gateway=setup.gateway if part.plugin.episodes.played_by == "agent" else None,
    )


def _run(
    episodes: loop.EpisodeSet,
    setup: EpisodeSetup,
    sampling: BatchSampling | ConcurrentSampling,
    retrieve: Retrieve,
    on_episode: Callable[[list[Trajectory]], None],
    stop: threading.Event,
) -> list[list[Trajectory]]:
    async def playing(answers: loop.Answers, places: int) -> list[list[Trajectory]]:
        async with setup.chat_server or nullcontext(), setup.gateway or nullcontext():
            queue = loop.EpisodeQueue(answers, places)
            queue.add(episodes)
            return await queue.results(episodes, on_episode, stop)

    if isinstance(sampling, ConcurrentSampling):
        one_by_one = loop.ConcurrentSampler(sampling.engine, retrieve, sampling.on_tokens)
        return sampling.engine.run(playing(one_by_one, sampling.max_in_flight))
    if setup.timing == "instant":
        in_step = loop.LockstepBatcher(sampling.engine, retrieve, len(episodes.episodes))
        return asyncio.run(playing(in_step, len(episodes.episodes)))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine") as thread:
        as_they_come = loop.QueueBatcher(sampling.engine, retrieve, thread)
        return asyncio.run(playing(as_they_come, sampling.max_in_flight))


def _raise_when_all_failed(
    identities: Sequence[EpisodeIdentity], environments: dict[int, GuardedEnvironment]
) -> None:
    """Raise where all episodes failed: nothing can be learned, and somebody must look at the environment."""
    if not environments or any(each.failure is None for each in environments.values()):
        return
    failure, first = environments[0].failure, identities[0]
    assert failure is not None
    place = f" ({failure.place})" if failure.place else ""
    number = len(environments)
    where = "the only episode" if number == 1 else f"all {number} episodes; in the first"
    raise EnvironmentFailed(
        f"the environment {first.task.environment} failed in {where}, of task {first.task.task_id}: "
        f"{failure}{place}"
    ) from failure


_LOOKED_AT = 256
_ENDLESS = 2**40  # tokens of a context in which every prompt has room


class _Measured(Exception):
    """The episode has asked for its first turn."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


def require_room(setup: EpisodeSetup, tasks: Sequence[Task]) -> None:
    """Raise `InputError`, naming the task with the longest, where first prompts fill the policy's context.

    Of many tasks only those with the largest payloads are looked at, since each takes about a millisecond;
    any other that is too long is reported when it is drawn. Environments that wait are not begun for this.
    """
    if setup.timing == "waiting":
        return
    looked_at = nlargest(_LOOKED_AT, tasks, key=lambda task: len(json.dumps(dict(task.payload))))
    endless = replace(setup.limits, context_length=_ENDLESS)
    asking = replace(setup, limits=endless, withhold=0.0, chat_server=None)

    async def measured() -> list[int]:
        return [await _length(asking, task) for task in looked_at]

    try:
        lengths = asyncio.run(measured())
    except TemplateError as error:
        raise loop.refused_by_template(error) from error
    longest = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    if longest is None or lengths[longest] < setup.limits.context_length:
        return
    raise InputError(
        f"task {looked_at[longest].task_id}: its prompt has {lengths[longest]} tokens, but the policy's "
        f"context holds {setup.limits.context_length}; it is the longest of {len(tasks)} tasks. Remove it "
        "and others like it, or use a longer context"
    )


async def _length(setup: EpisodeSetup, task: Task) -> int:
    """Tokens of a task's first prompt; 0 where its environment does not begin, which its episode reports."""
    context = _context(setup, EpisodeIdentity(task, 0, setup.provenance), _measure, _remember_nothing)
    try:
        await setup.protocol(context)
    except _Measured as measured:
        return measured.tokens
    finally:
        await context.environment.close()
    return 0


async def _measure(asked: SampleRequest) -> Generation:
    raise _Measured(len(asked.request.prompt_token_ids))


async def _remember_nothing(asked: RetrievalRequest) -> list[MemoryHit]:
    return []
