import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.context import EpisodeContext, RetrievalRequest, Retrieve, nothing_remembered
from erl_pipeline.episodes.play import BatchSampling, ConcurrentSampling, EpisodeSetup, play_episodes
from storage.errors import EngineError, InputError, Interrupted
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.engines import DOWN, REFLECTION, DownwardBatches, DownwardTurns
from tests.erl_pipeline.episodes.script import TASK, limits, setup


def play_turns(
    engine: DownwardTurns,
    count: int,
    max_in_flight: int = 4,
    given: EpisodeSetup | None = None,
    retrieve: Retrieve = nothing_remembered,
    on_tokens: Callable[[int], None] = lambda count: None,
    on_episode: Callable[[list[Trajectory]], None] = lambda rows: None,
    stop: threading.Event | None = None,
) -> list[Trajectory]:
    turns = ConcurrentSampling(engine, max_in_flight, on_tokens)
    played = play_episodes(
        given or setup(), [TASK], range(count), turns, retrieve, on_episode=on_episode, stop=stop
    )
    return played.rows


def test_batches_hold_the_earliest_phase_of_all_episodes_in_their_order() -> None:
    engine = DownwardBatches()
    asked: list[int] = []

    def retrieve(requests: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
        asked.append(len(requests))
        return nothing_remembered(requests)

    played = play_episodes(setup(retrieval=True), [TASK], range(6), BatchSampling(engine), retrieve)
    episode_ids = [row.episode_id for row in played.rows[::3]]

    assert [row.sample_index for row in played.rows[::3]] == [0, 1, 2, 3, 4, 5]
    roles = ("first_attempt/0", "reflection/1", "second_attempt/1")
    assert engine.batches == [[f"{episode}/{role}" for episode in episode_ids] for role in roles]
    assert asked == [6]
    assert (played.determinism, played.counters) == ("bytes", {})


def test_an_engine_of_single_turns_gives_the_same_trajectories() -> None:
    expected = play_episodes(setup(), [TASK], range(6), BatchSampling(DownwardBatches())).rows
    assert play_turns(DownwardTurns(), 6) == expected
    assert [row.role for row in expected[:3]] == ["first_attempt", "reflection", "second_attempt"]


def test_an_episode_waits_for_no_other() -> None:
    """The first turn of episode 0 is answered only after all other episodes are over; the order of results is
    unchanged."""
    first_conversation: list[str] = []

    def is_of_episode_0(request: GenerationRequest) -> bool:
        first_conversation.append(request.conversation)
        return request.conversation == first_conversation[0]

    engine = DownwardTurns(holds=is_of_episode_0)
    ended: list[int] = []

    def on_episode(rows: list[Trajectory]) -> None:
        ended.append(rows[0].sample_index)
        if len(ended) == 4:
            engine.held[0].set_result(DOWN)

    rows = play_turns(engine, 5, on_episode=on_episode)
    assert ended == [1, 2, 3, 4, 0]
    assert [row.sample_index for row in rows[::3]] == [0, 1, 2, 3, 4]


def test_no_more_episodes_are_under_way_than_allowed() -> None:
    engine = DownwardTurns(holds=lambda request: True)
    stop = threading.Event()
    given = setup()
    begun: list[int] = []

    async def begin(context: EpisodeContext) -> list[Trajectory]:
        begun.append(context.identity.sample_index)
        if len(begun) == 3:
            stop.set()
        return await given.protocol(context)

    with pytest.raises(Interrupted):
        play_turns(engine, 10, max_in_flight=3, given=replace(given, protocol=begin), stop=stop)
    assert begun == [0, 1, 2]
    assert all(future.cancelled() for future in engine.held)


def test_memory_is_asked_for_many_at_once() -> None:
    asked: list[int] = []

    def retrieve(requests: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
        asked.append(len(requests))
        return nothing_remembered(requests)

    play_turns(DownwardTurns(), 4, given=setup(retrieval=True), retrieve=retrieve)
    assert asked == [4]


def test_memory_holds_up_no_turn_of_another_episode() -> None:
    """Memory answers episode 0 only after the first turn of episode 1, which is released in the meantime."""
    engine = DownwardTurns(holds=lambda request: len(engine.asked) == 2)
    asked, sampled = threading.Event(), threading.Event()

    def retrieve(requests: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
        (turn,) = engine.held
        if not turn.done():
            asked.set()
            turn.get_loop().call_soon_threadsafe(turn.set_result, DOWN)
            assert sampled.wait(timeout=60.0)
        return nothing_remembered(requests)

    def on_tokens(count: int) -> None:
        if asked.is_set():
            sampled.set()

    rows = play_turns(engine, 2, given=setup(retrieval=True), retrieve=retrieve, on_tokens=on_tokens)
    assert len(rows) == 6


def test_sampled_tokens_are_counted() -> None:
    counts: list[int] = []
    play_turns(DownwardTurns(), 2, on_tokens=counts.append)
    turns = [len(answer.token_ids) for answer in (DOWN, REFLECTION, DOWN)]
    assert sorted(counts) == sorted(turns * 2)


def test_a_lost_engine_ends_the_run_after_finished_episodes_were_handed_out() -> None:
    engine = DownwardTurns(holds=lambda request: request.seed == engine.asked[0].seed)
    ended: list[int] = []

    def on_episode(rows: list[Trajectory]) -> None:
        ended.append(rows[0].sample_index)
        engine.held[0].set_exception(EngineError("more than 3 failures"))

    with pytest.raises(EngineError, match="more than 3 failures"):
        play_turns(engine, 2, max_in_flight=2, on_episode=on_episode)
    assert ended == [1]


@pytest.mark.parametrize("error", [Interrupted(), EngineError("no memory")])
def test_what_an_engine_of_batches_raises_ends_the_call(error: Exception) -> None:
    class Failing:
        policy_version = "policy-1"

        def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
            raise error

    with pytest.raises(type(error)):
        play_episodes(setup(), [TASK], range(3), BatchSampling(Failing()))


def test_a_prompt_that_fills_the_context_is_refused_by_name() -> None:
    small = replace(setup(), limits=limits(context_length=24))
    with pytest.raises(InputError, match="task corner: its prompt has 24 tokens"):
        play_episodes(small, [TASK], range(2), BatchSampling(DownwardBatches()))


def test_an_event_loop_of_its_own_leaves_none_behind() -> None:
    play_episodes(setup(), [TASK], range(1), BatchSampling(DownwardBatches()))
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
