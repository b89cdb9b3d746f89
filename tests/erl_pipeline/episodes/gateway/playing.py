"""Episodes that agents of tests play, against a policy that gives scripted answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.agent import ENVIRONMENT
from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.prompt_format import ChatPrompts
from erl_pipeline.episodes.context import EpisodeLimits, Provenance, RoleLimits
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.play import (
    BatchSampling,
    ConcurrentSampling,
    EpisodeSetup,
    PlayedEpisodes,
    play_episodes,
)
from erl_pipeline.methods.erl.episode import ErlRules, run_episode
from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.test_dialogue import chatml_tokenizer, end_ids, said

TOKENIZER = chatml_tokenizer()
END = "<|im_end|>"
TASK = {"prompt": "how many?", "wanted": "7", "answer": "7"}
AGENT_OF_THREE_CALLS = Path(__file__).with_name("agent_of_three_calls.py")
"""A command that makes two calls in one conversation, and a third in another."""
Says = Callable[[str], str]
"""From the prompt, as text, to what the policy says."""


class ScriptedEngine:
    def __init__(self, says: Says) -> None:
        self._says = says
        self.asked: list[GenerationRequest] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.asked += requests
        return [self._said(each) for each in requests]

    def _said(self, asked: GenerationRequest) -> Generation:
        whole = said(TOKENIZER, self._says(TOKENIZER.decode(asked.prompt_token_ids)) + END)
        most = asked.max_new_tokens
        if len(whole.token_ids) <= most:
            return whole
        return Generation(whole.token_ids[:most], whole.logprobs[:most], "length")


def played(
    function: Callable[..., Any] | None,
    says: Says,
    *,
    max_revisions: int = 0,
    context_length: int = 4000,
    samples: int = 1,
    engine: ScriptedEngine | None = None,
    task: Mapping[str, Any] = TASK,
    sampling: ConcurrentSampling | None = None,
    **settings: Any,
) -> PlayedEpisodes:
    named = None if function is None else f"{function.__module__}:{function.__name__}"
    config = AgentConfig(function=named, **settings)
    setup = EpisodeSetup(
        ENVIRONMENT,
        config,
        partial(run_episode, rules=ErlRules(ChatPrompts(PromptTemplates()), max_revisions)),
        ChatTokenizer(TOKENIZER),
        EpisodeLimits(
            context_length=context_length,
            end_token_ids=end_ids(TOKENIZER),
            success_threshold=1.0,
            step_seconds=60.0,
            by_role={
                FIRST_ATTEMPT: RoleLimits(1.0, 256),
                REFLECTION: RoleLimits(0.7, 64),
                SECOND_ATTEMPT: RoleLimits(1.0, 256),
            },
        ),
        Provenance("recipe", 3, {"policy": "policy-1"}, "tokenizer", "memory-1", 0),
    )
    tasks = [Task("t", "agent", "agent", dict(task))]
    return play_episodes(
        setup, tasks, range(samples), sampling or BatchSampling(engine or ScriptedEngine(says))
    )


def only(episodes: PlayedEpisodes) -> Trajectory:
    (row,) = episodes.rows
    return row


def text(ids: Sequence[int]) -> str:
    return "".join(TOKENIZER.convert_ids_to_tokens(list(ids)))
