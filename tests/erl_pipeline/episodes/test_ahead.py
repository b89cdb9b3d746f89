"""Episodes of the next shards on places that are free. Turns last as many rounds as they have tokens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.ahead import EpisodesAhead
from erl_pipeline.episodes.context import EpisodeContext, SampleRequest, nothing_remembered
from erl_pipeline.episodes.play import ConcurrentSampling, ShardEpisodes
from storage.errors import EngineError, Interrupted
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.round_engine import RoundEngine
from tests.erl_pipeline.episodes.script import PROVENANCE, TASK, setup

LENGTHS = {"a": [6, 1, 1], "b": [2, 2, 2], "c": [1]}
"""Rounds that the episodes of each shard take, each of one turn."""


def answer(request: GenerationRequest) -> Generation:
    if request.max_new_tokens < 0:
        raise EngineError("no server")
    return Generation((1,) * request.max_new_tokens, (-0.5,) * request.max_new_tokens, "stop")


@pytest.fixture
def engine() -> Iterator[RoundEngine]:
    with RoundEngine(answer) as opened:
        yield opened


class Worker:
    """Plays shards one after the other, as the stages of a worker do."""

    def __init__(self, engine: RoundEngine, lengths: dict[str, list[int]] = LENGTHS, places: int = 2) -> None:
        self.ahead = EpisodesAhead()
        self.tokens = 0
        self.ended: list[list[str]] = []
        self.closed: list[str] = []
        self._lengths = lengths
        self._sampling = ConcurrentSampling(engine, places, self._count)

    def play(
        self, shard: str, following: Sequence[str] = (), stop: threading.Event | None = None
    ) -> list[str]:
        """The names of the shard's episodes, in the order of its artifact."""
        self.ended.append([])
        played = self.ahead.play(
            shard,
            self._episodes,
            following,
            self._sampling,
            nothing_remembered,
            self._end,
            stop or threading.Event(),
        )
        return [row.trajectory_id for row in played.rows]

    def _episodes(self, shard: str) -> ShardEpisodes:
        async def one_turn(context: EpisodeContext) -> list[Trajectory]:
            identity, name = context.identity, f"{shard}{context.identity.sample_index}"
            length = self._lengths[shard][identity.sample_index]
            request = GenerationRequest((1,), length, 1.0, 0, name)
            try:
                await context.ask_policy(SampleRequest(0, request))
            finally:
                self.closed.append(name)
            return [SimpleNamespace(trajectory_id=name, finish_reason="done")]  # type: ignore[list-item]

        own = replace(setup(), protocol=one_turn, provenance=replace(PROVENANCE, recipe_id=shard))
        return ShardEpisodes(own, [TASK], range(len(self._lengths[shard])))

    def _end(self, rows: list[Trajectory]) -> None:
        self.ended[-1] += [row.trajectory_id for row in rows]

    def _count(self, tokens: int) -> None:
        self.tokens += tokens


def test_shards_one_after_the_other_leave_places_empty(engine: RoundEngine) -> None:
    worker = Worker(engine)
    for shard in "abc":
        worker.play(shard)
    assert engine.rounds == 6 + 4 + 1
    assert engine.asked == ["a0", "a1", "a2", "b0", "b1", "b2", "c0"]


def test_the_next_shard_begins_on_free_places_and_each_shard_gives_what_it_gave(engine: RoundEngine) -> None:
    """The second place plays a1, a2, b0 and b1 while the first one plays a0; then both are free for b2 and
    c0."""
    worker = Worker(engine)
    played = [worker.play("a", ["b", "c"]), worker.play("b", ["c"]), worker.play("c")]
    assert engine.rounds == 6 + 2
    assert engine.most_in_flight == 2
    assert played == [["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0"]]
    assert engine.asked == ["a0", "a1", "a2", "b0", "b1", "b2", "c0"]
    # Each stage hears of its own episodes, also of those that ended before it began.
    assert worker.ended == [["a1", "a2", "a0"], ["b0", "b1", "b2"], ["c0"]]
    assert worker.tokens == 8 + 6 + 1


def test_no_more_following_shards_are_begun_than_fill_all_places(engine: RoundEngine) -> None:
    """With four places the two episodes of b are not enough, with c there are four; d is left."""
    lengths = {"a": [9], "b": [1, 1], "c": [1, 1], "d": [1]}
    worker = Worker(engine, lengths, places=4)
    worker.play("a", ["b", "c", "d"])
    assert engine.asked == ["a0", "b0", "b1", "c0", "c1"]
    assert ["b" in worker.ahead, "c" in worker.ahead, "d" in worker.ahead] == [True, True, False]


def test_what_fails_ahead_fails_the_shard_that_it_belongs_to(engine: RoundEngine) -> None:
    worker = Worker(engine, {"a": [3], "b": [1, -1], "c": [1]})
    assert worker.play("a", ["b", "c"]) == ["a0"]
    with pytest.raises(EngineError, match="no server"):
        worker.play("b", ["c"])
    assert "c" not in worker.ahead
    worker = Worker(engine, {"b": [1, 1]})
    assert worker.play("b") == ["b0", "b1"]


def test_whoever_trains_ends_what_is_played_ahead(engine: RoundEngine) -> None:
    worker = Worker(engine, {"a": [1], "b": [9, 9, 9]})
    worker.play("a", ["b"])
    assert worker.closed == ["a0"]
    worker.ahead.drop()
    assert sorted(worker.closed) == ["a0", "b0", "b1"]
    assert "b" not in worker.ahead
    engine.asked.clear()
    worker.play("b")
    assert engine.asked == ["b0", "b1", "b2"]


def test_another_shard_than_the_next_ends_what_is_played_ahead(engine: RoundEngine) -> None:
    worker = Worker(engine, {"a": [1], "b": [9], "z": [2]})
    worker.play("a", ["b"])
    assert worker.play("z") == ["z0"]
    assert worker.closed == ["a0", "b0", "z0"]


def test_a_stop_ends_the_shard_and_what_is_played_ahead(engine: RoundEngine) -> None:
    worker, stop = Worker(engine, {"a": [10**6], "b": [10**6]}), threading.Event()
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(Interrupted):
        worker.play("a", ["b"], stop)
    assert sorted(worker.closed) == ["a0", "b0"]
    assert "b" not in worker.ahead
