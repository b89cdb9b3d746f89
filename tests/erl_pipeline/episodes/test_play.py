import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest, Interrupted
from erl_pipeline.environments.catalog import open_environment, prompt_format
from erl_pipeline.episodes.batched_driver import run_batched
from erl_pipeline.episodes.concurrent_driver import run_concurrently
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.episode import run_episode
from erl_pipeline.episodes.requests import EpisodeSteps, ReflectionsWanted
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer
from storage.errors import EngineError
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import CONTEXT, ENVIRONMENT, PROVENANCE, TASK, rules

Result = TypeVar("Result")
TOKENIZER = build_tokenizer(ENVIRONMENT, CONTEXT)


def says(text: str) -> Generation:
    token_ids = tuple(TOKENIZER(f"{text} <end>", add_special_tokens=False)["input_ids"])
    return Generation(token_ids, (-0.5,) * len(token_ids), "stop")


DOWN = says("down b")
REFLECTION = says("? a b ?")


def answer_to(request: GenerationRequest) -> Generation:
    return REFLECTION if "/REFLECTION/" in request.conversation else DOWN


def episode(sample: int, retrieval: bool = False) -> EpisodeSteps:
    """Start above a hole: the policy goes down in one turn, reflects, and goes down again."""
    environment = open_environment(ENVIRONMENT, TASK)
    return run_episode(
        TASK,
        sample,
        environment,
        prompt_format(ENVIRONMENT),
        ChatTokenizer(TOKENIZER),
        rules(TOKENIZER, retrieval=retrieval),
        PROVENANCE,
    )


class DownwardPolicy:
    """Goes down and reflects; a request that `holds` is true of is answered when it is let go."""

    def __init__(self, holds: Callable[[GenerationRequest], bool] = lambda request: False) -> None:
        self.held: list[asyncio.Future[Generation]] = []
        self.asked: list[GenerationRequest] = []
        self._holds = holds

    @property
    def policy_version(self) -> str:
        return "policy-1"

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run(work)

    async def sample(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        if not self._holds(request):
            return answer_to(request)
        self.held.append(asyncio.get_running_loop().create_future())
        return await self.held[-1]

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return [answer_to(request) for request in requests]


def nothing_remembered(wanted: Sequence[ReflectionsWanted]) -> list[list[MemoryHit]]:
    return [[] for _ in wanted]


def run(engine: DownwardPolicy, count: int, **changes: object) -> list[list[Trajectory]]:
    settings: dict[str, object] = {
        "retrieve": nothing_remembered,
        "on_episode": lambda rows: None,
        "on_tokens": lambda count: None,
        "max_in_flight": 4,
        "stop": threading.Event(),
    }
    episodes = [partial(episode, sample) for sample in range(count)]
    return run_concurrently(episodes, engine, **{**settings, **changes})  # type: ignore[arg-type]


def test_gives_the_trajectories_of_the_batched_driver() -> None:
    expected = run_batched(
        [episode(sample) for sample in range(6)], DownwardPolicy(), nothing_remembered, lambda rows: None
    )
    assert run(DownwardPolicy(), 6) == expected
    assert [row.role for row in expected[0]] == ["first_attempt", "reflection", "second_attempt"]


def test_an_episode_waits_for_no_other() -> None:
    """The first turn of episode 0 is answered only after all others are over; the order of results stays."""
    first_conversation: list[str] = []

    def is_of_episode_0(request: GenerationRequest) -> bool:
        first_conversation.append(request.conversation)
        return request.conversation == first_conversation[0]

    engine = DownwardPolicy(holds=is_of_episode_0)
    ended: list[int] = []

    def on_episode(rows: list[Trajectory]) -> None:
        ended.append(rows[0].sample_index)
        if len(ended) == 4:
            engine.held[0].set_result(DOWN)

    results = run(engine, 5, on_episode=on_episode)
    assert ended == [1, 2, 3, 4, 0]
    assert [rows[0].sample_index for rows in results] == [0, 1, 2, 3, 4]


def test_no_more_episodes_are_under_way_than_allowed() -> None:
    engine = DownwardPolicy(holds=lambda request: True)
    stop = threading.Event()
    made: list[int] = []

    def make(sample: int) -> EpisodeSteps:
        made.append(sample)
        if len(made) == 3:
            stop.set()
        return episode(sample)

    with pytest.raises(Interrupted):
        run_concurrently(
            [partial(make, sample) for sample in range(10)],
            engine,
            nothing_remembered,
            lambda rows: None,
            lambda count: None,
            max_in_flight=3,
            stop=stop,
        )
    assert made == [0, 1, 2]
    assert all(future.cancelled() for future in engine.held)


def test_memory_is_asked_for_many_at_once() -> None:
    asked: list[int] = []

    def retrieve(wanted: Sequence[ReflectionsWanted]) -> list[list[MemoryHit]]:
        asked.append(len(wanted))
        return nothing_remembered(wanted)

    episodes = [partial(episode, sample, retrieval=True) for sample in range(4)]
    run_concurrently(
        episodes, DownwardPolicy(), retrieve, lambda rows: None, lambda count: None, 4, threading.Event()
    )
    assert asked == [4]


def test_memory_holds_up_no_turn_of_another_episode() -> None:
    """Memory answers episode 0 only after the first turn of episode 1, which was let go meanwhile."""
    engine = DownwardPolicy(holds=lambda request: len(engine.asked) == 2)
    asked, sampled = threading.Event(), threading.Event()

    def retrieve(wanted: Sequence[ReflectionsWanted]) -> list[list[MemoryHit]]:
        (turn,) = engine.held
        if not turn.done():
            asked.set()
            turn.get_loop().call_soon_threadsafe(turn.set_result, DOWN)
            assert sampled.wait(timeout=10.0)
        return nothing_remembered(wanted)

    def on_tokens(count: int) -> None:
        if asked.is_set():
            sampled.set()

    episodes = [partial(episode, sample, retrieval=True) for sample in range(2)]
    results = run_concurrently(episodes, engine, retrieve, lambda rows: None, on_tokens, 2, threading.Event())
    assert [len(rows) for rows in results] == [3, 3]


def test_sampled_tokens_are_counted() -> None:
    counts: list[int] = []
    run(DownwardPolicy(), 2, on_tokens=counts.append)
    turns = [len(answer.token_ids) for answer in (DOWN, REFLECTION, DOWN)]
    assert sorted(counts) == sorted(turns * 2)


def test_a_lost_engine_ends_the_run_after_finished_episodes_were_handed_out() -> None:
    engine = DownwardPolicy(holds=lambda request: request.seed == engine.asked[0].seed)
    ended: list[int] = []

    def on_episode(rows: list[Trajectory]) -> None:
        ended.append(rows[0].sample_index)
        engine.held[0].set_exception(EngineError("more than 3 failures"))

    with pytest.raises(EngineError, match="more than 3 failures"):
        run(engine, 2, on_episode=on_episode)
    assert ended == [1]
