"""Concurrent episodes whose searches wait for each other, fail or hang."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.hotpotqa import ENVIRONMENT
from erl_pipeline.environments.hotpotqa.environment import HotpotQA
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tasks import Passage
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import opening
from erl_pipeline.environments.threads import in_threads
from erl_pipeline.episodes.attempt import play_attempt
from erl_pipeline.episodes.context import EpisodeContext, EpisodeLimits, Provenance, RoleLimits, TurnKey
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.play import ConcurrentSampling, EpisodeSetup, play_episodes
from storage.errors import InputError
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.test_dialogue import chatml_tokenizer

Result = TypeVar("Result")
ROLE = "first_attempt"
TOKENIZER = chatml_tokenizer()
SEARCH = f"<tool_call>{json.dumps({'name': 'search', 'arguments': {'query': 'Bragg'}})}</tool_call>"
EPISODES, LONGEST = 64, 3


def tasks(count: int) -> list[Task]:
    payload = {
        "question": "Who is the mayor?",
        "answer": "Anna Holm",
        "supporting": ["Bragg"],
        "level": "easy",
    }
    return [Task(f"t{number}", "hotpotqa-bridge", "hotpotqa", payload) for number in range(count)]


def searches(number: int) -> int:
    """How often the policy searches in an episode before it answers."""
    return 1 + number % LONGEST


class Searching:
    """A policy that searches a given number of times in each episode, and then answers."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run(work)

    async def sample(self, request: GenerationRequest) -> Generation:
        left = self._left.setdefault(request.conversation, searches(len(self._left)))
        self._left[request.conversation] = left - 1
        text = f"{SEARCH if left else 'Answer: Anna Holm'}<|im_end|>"
        ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        return Generation(tuple(ids), (-0.5,) * len(ids), "stop")


async def first_attempt(context: EpisodeContext) -> list[Trajectory]:
    place = TurnKey(ROLE, phase=0)
    attempt = await play_attempt(context, place, opening)
    return [attempt.row(context, place, None)]


def play(
    count: int, search: Callable[[Task], Sequence[Passage]], step_seconds: float = 60.0
) -> list[Trajectory]:
    """Play episodes of this many tasks at the same time; returns their rows."""
    plugin = replace(
        ENVIRONMENT,
        open=lambda settings, task: in_threads(HotpotQA(settings, task, lambda query: search(task))),
    )
    setup = EpisodeSetup(
        plugin,
        HotpotQAConfig(),
        first_attempt,
        ChatTokenizer(TOKENIZER),
        EpisodeLimits(
            context_length=4096,
            end_token_ids=frozenset({TOKENIZER.eos_token_id}),
            success_threshold=1.0,
            step_seconds=step_seconds,
            by_role={ROLE: RoleLimits(temperature=1.0, max_new_tokens=200)},
        ),
        Provenance("recipe", 1, {"policy": "policy-1"}, "tokenizer", "", 0),
    )
    return play_episodes(setup, tasks(count), range(1), ConcurrentSampling(Searching(), count)).rows


def test_64_episodes_with_a_slow_tool_take_as_long_as_the_longest_of_them() -> None:
    """No first search returns before all 64 are under way, no second one before all second ones, and so on:
    if a search waited for that of another episode, none of them would end."""
    ways = [searches(number) for number in range(EPISODES)]
    together = [threading.Barrier(sum(way > done for way in ways), timeout=60.0) for done in range(LONGEST)]
    searched: dict[str, Iterator[threading.Barrier]] = {
        task.task_id: iter(together) for task in tasks(EPISODES)
    }

    def search(task: Task) -> list[Passage]:
        next(searched[task.task_id]).wait()
        return [Passage("Bragg", "Its mayor is Anna Holm.")]

    rows = play(EPISODES, search)
    assert len(rows) == EPISODES
    assert all(row.success for row in rows)
    assert sum(row.response_mask.count(0) > 0 for row in rows) == EPISODES


def test_a_search_that_fails_or_hangs_ends_its_episode_alone() -> None:
    the_end = threading.Event()

    def search(task: Task) -> list[Passage]:
        if task.task_id == "t0":
            raise ConnectionError("the index is gone")
        if task.task_id == "t1":
            the_end.wait()
        return [Passage("Bragg", "Its mayor is Anna Holm.")]

    started = time.perf_counter()
    try:
        rows = play(4, search, step_seconds=0.5)
    finally:
        the_end.set()
    assert time.perf_counter() - started < 60.0
    assert [(row.finish_reason, row.reward) for row in rows] == [
        ("environment_error", 0.0),
        ("environment_timeout", 0.0),
        ("done", 1.0),
        ("done", 1.0),
    ]
    assert rows[0].feedback == "step: ConnectionError: the index is gone"


def test_a_template_that_shows_no_tools_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TOKENIZER, "chat_template", TOKENIZER.chat_template.replace("if tools", "if false"))
    with pytest.raises(InputError, match=r"hotpotqa offers tools, but .* environment\.tool_format: plain"):
        play(1, lambda _task: [])
