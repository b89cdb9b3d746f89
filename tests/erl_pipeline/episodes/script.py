"""Episodes whose policy gives scripted answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.episodes.context import (
    EpisodeContext,
    EpisodeIdentity,
    EpisodeLimits,
    Provenance,
    RetrievalRequest,
    RoleLimits,
    SampleRequest,
)
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.episodes.play import EpisodeSetup
from erl_pipeline.methods.erl.episode import ErlRules, run_episode
from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT
from erl_pipeline.policies.tiny.model import build_tokenizer
from storage.tables.trajectories import Trajectory

CONTEXT = 128
# Start in the upper left corner, goal two cells to its right, a hole below the start.
SETTINGS = FrozenLakeConfig(world_seed=0)
TASK = Task(
    task_id="corner",
    task_type="frozen_lake-4x4",
    environment="frozen_lake",
    payload={
        "board": ["SFGF", "HFFF", "FFFF", "FFFF"],
        "max_steps": 6,
        "actions": {"a": "right", "b": "down", "c": "left", "d": "up"},
        "symbols": {"player": "@", "frozen": "#", "hole": "$", "goal": "&"},
    },
)
TOKENIZER = build_tokenizer(ENVIRONMENT.tiny.require(SETTINGS).words, CONTEXT)
PROVENANCE = Provenance("recipe", 3, {"policy": "policy-1"}, "tokenizer", "memory-1", 0)
_PROMPTS = ENVIRONMENT.prompts(SETTINGS)
assert _PROMPTS is not None
COMPACT: PromptFormat = _PROMPTS


def limits(context_length: int = CONTEXT, step_seconds: float = 60.0) -> EpisodeLimits:
    return EpisodeLimits(
        context_length=context_length,
        end_token_ids=frozenset({TOKENIZER.eos_token_id}),
        success_threshold=1.0,
        step_seconds=step_seconds,
        by_role={
            FIRST_ATTEMPT: RoleLimits(temperature=1.0, max_new_tokens=8),
            REFLECTION: RoleLimits(temperature=0.7, max_new_tokens=6),
            SECOND_ATTEMPT: RoleLimits(temperature=1.0, max_new_tokens=8),
        },
    )


def setup(**rules: Any) -> EpisodeSetup:
    """Episodes of ERL on FrozenLake in its compact form."""
    chosen = ErlRules(**{"prompts": COMPACT, "max_revisions": 1, **rules})
    protocol = partial(run_episode, rules=chosen)
    return EpisodeSetup(ENVIRONMENT, SETTINGS, protocol, ChatTokenizer(TOKENIZER), limits(), PROVENANCE)


def says(text: str) -> Generation:
    """A turn of the policy with this text and the end token."""
    token_ids = tuple(TOKENIZER(f"{text} <end>", add_special_tokens=False)["input_ids"])
    return Generation(token_ids, (-0.25,) * len(token_ids), "stop")


def play(
    answers: Sequence[str],
    retrieved: Sequence[Any] = (),
    sample: int = 0,
    context_length: int = CONTEXT,
    withhold: float = 0.0,
    **rules: Any,
) -> tuple[list[Trajectory], list[SampleRequest | RetrievalRequest]]:
    """Play one episode in which the policy gives `answers`, turn by turn; returns its rows and all its
    requests."""
    given, remaining = setup(**rules), list(answers)
    asked: list[SampleRequest | RetrievalRequest] = []
    context = scripted(remaining, asked, retrieved, sample, context_length, withhold)
    rows: list[Trajectory] = asyncio.run(given.protocol(context))
    assert not remaining
    return rows, asked


def row(*behaviour: float) -> Trajectory:
    """A first attempt with one response token for each log-probability of the sampler."""
    tokens = tuple(range(len(behaviour)))
    return replace(
        play(["right a", "right a"])[0][0],
        response_token_ids=tokens,
        response_mask=(1,) * len(tokens),
        behaviour_logprobs=behaviour,
    )


def scripted(
    remaining: list[str],
    asked: list[SampleRequest | RetrievalRequest],
    retrieved: Sequence[Any] = (),
    sample: int = 0,
    context_length: int = CONTEXT,
    withhold: float = 0.0,
) -> EpisodeContext:
    """An episode in which the policy gives the `remaining` answers; requests go to `asked`."""

    async def ask_policy(request: SampleRequest) -> Generation:
        asked.append(request)
        return says(remaining.pop(0))

    async def ask_memory(request: RetrievalRequest) -> list[Any]:
        asked.append(request)
        return list(retrieved)

    return EpisodeContext(
        identity=EpisodeIdentity(TASK, sample, PROVENANCE),
        environment=GuardedEnvironment(lambda: ENVIRONMENT.open(SETTINGS, TASK), 60.0),
        chat=ChatTokenizer(TOKENIZER),
        limits=limits(context_length),
        ask_policy=ask_policy,
        ask_memory=ask_memory,
        withhold=withhold,
    )
