"""Which episode this is, what its protocol works with and asks for while it runs, and what happened in it as
trajectory rows."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import Message, ToolSchema
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from storage.artifacts.recipe import derive_seed
from storage.tables.trajectories import FREE, GUIDED, Trajectory, trajectory_id

if TYPE_CHECKING:
    from erl_pipeline.engines.chat_server import ChatServer
    from erl_pipeline.episodes.gateway.server import Gateway
    from storage.memory.view import MemoryHit
    from storage.tables.agent_calls import AgentCall


@dataclass(frozen=True)
class RoleLimits:
    """How the turns of one role are sampled: by which model, at which temperature, up to how many tokens.

    `model` is None where they are sampled by a model that somebody else serves, not by one of the run.
    """

    temperature: float
    max_new_tokens: int
    model: str | None = "policy"


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of episodes.

    `context_length` in tokens and `end_token_ids` are the tokenizer's and model's; an attempt succeeded
    when its reward is at least `success_threshold`; `step_seconds` is the deadline of each call of an
    environment; `by_role` has an entry for each role that the method samples. An attempt that the environment
    failed is played again at most `retries` times. With `failures_are_zero` it counts as one of reward 0, if
    it was not its scorer that failed.
    """

    context_length: int
    end_token_ids: frozenset[int]
    success_threshold: float
    step_seconds: float
    by_role: Mapping[str, RoleLimits]
    retries: int = 0
    failures_are_zero: bool = False


@dataclass(frozen=True)
class Provenance:
    """What every trajectory of a shard says about where it came from.

    `policy_versions` holds the artifact id of each model that is sampled, by the model's name.
    """

    recipe_id: str
    iteration: int
    policy_versions: Mapping[str, str]
    tokenizer_digest: str
    memory_version: str
    run_seed: int


@dataclass(frozen=True)
class EpisodeIdentity:
    """Which episode this is; its ids and random numbers derive from it."""

    task: Task
    sample_index: int
    provenance: Provenance
    seeded_as: tuple[int, int] | None = None
    """The sample index and the revision whose seeds its turns get; None for its own."""

    @cached_property
    def episode_id(self) -> str:
        return trajectory_id(self.provenance.recipe_id, self.task.task_id, self.sample_index)

    def seed(self, role: str, revision: int, turn: int) -> int:
        """Seed of one turn: (run seed, iteration, task, sample, role, revision, turn). Rows hold the seed of
        turn 0."""
        origin = self.provenance
        sample, revision = self.seeded_as or (self.sample_index, revision)
        return derive_seed(origin.run_seed, origin.iteration, self.task.task_id, sample, role, revision, turn)

    def chance(self, *what: str | int) -> float:
        """A number in [0, 1) that derives from (run seed, iteration, task) and `what` it is drawn for."""
        origin = self.provenance
        return derive_seed(origin.run_seed, origin.iteration, self.task.task_id, *what) / 2**63


def group_id(iteration: int, task_id: str, role: str, revision: int) -> str:
    """The group in which a trajectory's reward is compared."""
    return f"{iteration}/{task_id}/{role}/{revision}"


def opening_messages(row: Trajectory) -> tuple[Message, ...]:
    """The messages of a trajectory before the policy first spoke."""
    messages: list[Message] = json.loads(row.messages)
    spoken = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return tuple(messages[:spoken])


def situation(opening: Sequence[Message], feedback: str) -> str:
    """The text whose embedding is the key of a memory entry; `opening` is what the policy was told."""
    return f"{opening[-1]['content']}\n{feedback}"


@dataclass(frozen=True)
class Outcome:
    """What a conversation of an episode led to; the names are those of the columns.

    `parent` is the trajectory that led to this one, `text` a reflection as it is used. `hits` are the memory
    entries that were in the prompt; None where no memory was asked. `subgroup` is its part of a group that is
    split. `metrics` are the environment's.
    """

    parent: str | None
    reward: float
    success: bool
    finish_reason: str
    truncated: bool
    feedback: str
    text: str | None = None
    hits: Sequence[MemoryHit] | None = None
    subgroup: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] | None = None


class Conversation(Protocol):
    """A token sequence and what was said in it; the names are those of the columns. `opening` is what the
    policy was told before it first spoke."""

    opening: tuple[Message, ...]
    messages: list[Message]
    prompt_token_ids: tuple[int, ...]
    response_token_ids: list[int]
    response_mask: list[int]
    behaviour_logprobs: list[float]
    truncated: bool


def further_sequence(
    context: EpisodeContext, place: TurnKey, first: Trajectory, conversation: Conversation, number: int
) -> Trajectory:
    """The row of a further token sequence of an attempt, whose `first` sequence is its parent: the same in
    all that is said of the attempt."""
    episode = context.identity
    return replace(
        first,
        trajectory_id=trajectory_id(
            episode.provenance.recipe_id,
            episode.task.task_id,
            episode.sample_index,
            place.role,
            place.revision,
            number,
        ),
        parent_trajectory_id=first.trajectory_id,
        **conversation_columns(conversation),
        truncated=conversation.truncated,
    )


def conversation_columns(conversation: Conversation) -> dict[str, Any]:
    """The columns of a trajectory that hold its tokens and what was said."""
    return {
        "prompt_token_ids": conversation.prompt_token_ids,
        "response_token_ids": tuple(conversation.response_token_ids),
        "response_mask": tuple(conversation.response_mask),
        "behaviour_logprobs": tuple(conversation.behaviour_logprobs),
        "messages": json.dumps(conversation.messages, ensure_ascii=False),
    }


def trajectory(
    context: EpisodeContext, place: TurnKey, conversation: Conversation, outcome: Outcome
) -> Trajectory:
    """The row of one conversation."""
    episode, limits = context.identity, context.limits.by_role[place.role]
    task, origin, role, revision = episode.task, episode.provenance, place.role, place.revision
    return Trajectory(
        trajectory_id=trajectory_id(origin.recipe_id, task.task_id, episode.sample_index, role, revision),
        episode_id=episode.episode_id,
        parent_trajectory_id=outcome.parent,
        iteration=origin.iteration,
        task_id=task.task_id,
        task_type=task.task_type,
        environment=task.environment,
        role=role,
        revision_index=revision,
        sample_index=episode.sample_index,
        group_id=group_id(origin.iteration, task.task_id, role, revision),
        subgroup=outcome.subgroup,
        **conversation_columns(conversation),
        temperature=limits.temperature,
        policy_version="" if limits.model is None else origin.policy_versions[limits.model],
        tokenizer_digest=origin.tokenizer_digest,
        reward=outcome.reward,
        success=outcome.success,
        finish_reason=outcome.finish_reason,
        truncated=outcome.truncated,
        feedback=outcome.feedback,
        metrics=json.dumps(dict(outcome.metrics)),
        turn_rewards=outcome.turn_rewards,
        text=outcome.text,
        memory_version="" if outcome.hits is None else origin.memory_version,
        memory_entry_ids=tuple(hit.entry.entry_id for hit in outcome.hits or ()),
        seed=episode.seed(role, revision, 0),
        task_payload=task_payload(task),
    )


def task_payload(task: Task) -> str:
    """The column `task_payload` of the trajectories of a task."""
    return json.dumps(dict(task.payload), sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class SampleRequest:
    """One turn of a policy.

    `phase` says how far the episode is; where episodes go in step, the earliest phase of all is finished
    first, so that batches stay large.
    """

    phase: int
    request: GenerationRequest


@dataclass(frozen=True)
class RetrievalRequest:
    """Reflections from memory on similar situations; `phase` as in `SampleRequest`."""

    phase: int
    situation: str
    task_type: str


AskPolicy = Callable[[SampleRequest], Awaitable[Generation]]
AskMemory = Callable[[RetrievalRequest], "Awaitable[list[MemoryHit]]"]
Retrieve = Callable[[Sequence[RetrievalRequest]], "list[list[MemoryHit]]"]
"""Answers many retrievals together, in order."""


def nothing_remembered(requests: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
    """The answers of an empty memory."""
    return [[] for _ in requests]


def subgroup_of(identity: EpisodeIdentity, withhold: float) -> str | None:
    """`free` where memory is withheld from an episode, else `guided`; None where all episodes see memory.

    Systematic sampling: of any K samples in a row memory is withheld from K * `withhold`, rounded up or down,
    and from each with probability `withhold`. It depends only on (run seed, iteration, task, sample).
    """
    if withhold == 0.0:
        return None
    place = identity.chance("withhold") + identity.sample_index * withhold
    return FREE if math.floor(place + withhold) > math.floor(place) else GUIDED


@dataclass(frozen=True)
class TurnKey:
    """The place of a conversation in its episode; `phase` as in `SampleRequest`."""

    role: str
    phase: int
    revision: int = 0


@dataclass(frozen=True)
class EpisodeContext:
    """One episode: which it is, its environment, and ways to ask for turns and for memory."""

    identity: EpisodeIdentity
    environment: GuardedEnvironment
    chat: ChatTokenizer
    limits: EpisodeLimits
    ask_policy: AskPolicy
    ask_memory: AskMemory
    mean_metrics: frozenset[str] = frozenset()
    """Metrics of turns that are averaged over an attempt; all others are summed."""
    withhold: float = 0.0
    """Share of a group's samples that see no memory."""
    chat_server: ChatServer | None = None
    """A model outside the engine that the protocol asks, such as a judge."""
    instruction: str | None = None
    """A text that belongs to the policy, for the prompt of a first attempt."""
    gateway: Gateway | None = None
    """Where the agent that plays the environment asks the policy; None where the policy plays itself."""
    further_sequences: list[Trajectory] = field(default_factory=list)
    """Filled while attempts become rows: the token sequences of an agent's attempt beside its first."""
    agent_calls: list[AgentCall] = field(default_factory=list)
    """Filled with them: what agents asked."""

    @property
    def subgroup(self) -> str | None:
        """`guided`, or `free` where this episode is to see no memory; None where all may see it."""
        return subgroup_of(self.identity, self.withhold)

    def room(self, dialogue: Dialogue) -> int:
        """Tokens that the context has left for the next turn."""
        return self.limits.context_length - dialogue.length

    async def sample(self, dialogue: Dialogue, place: TurnKey, turn: int) -> Generation:
        """The policy's next turn in a dialogue; there must be room for it."""
        limits = self.limits.by_role[place.role]
        assert limits.model is not None
        request = GenerationRequest(
            prompt_token_ids=dialogue.token_ids,
            max_new_tokens=min(limits.max_new_tokens, self.room(dialogue)),
            temperature=limits.temperature,
            seed=self.identity.seed(place.role, place.revision, turn),
            conversation=f"{self.identity.episode_id}/{place.role}/{place.revision}",
            model=limits.model,
        )
        return await self.ask_policy(SampleRequest(place.phase, request))

    def with_room(
        self,
        hits: Sequence[MemoryHit],
        prompt: Callable[[Sequence[str]], Sequence[Message]],
        tools: Sequence[ToolSchema] = (),
    ) -> Sequence[MemoryHit]:
        """The first of the hits: as many as leave room for a turn behind the prompt that is made of their
        texts."""
        offered = json.dumps(list(tools)) if tools else "[]"
        for number in range(len(hits), 0, -1):
            messages = prompt([hit.entry.text for hit in hits[:number]])
            if len(self.chat.prompt(messages, offered)) < self.limits.context_length:
                return hits[:number]
        return []

    async def retrieve(self, phase: int, situation: str) -> list[MemoryHit]:
        """Reflections that memory has for a situation."""
        return await self.ask_memory(RetrievalRequest(phase, situation, self.identity.task.task_type))


EpisodeProtocol = Callable[[EpisodeContext], Coroutine[Any, Any, list[Trajectory]]]
"""Plays one episode and returns its trajectories, the first attempt first."""
