"""Runs episodes each at its own pace on an engine that answers single requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from erl_pipeline.episodes.batched_driver import Retrieve
from erl_pipeline.episodes.requests import Answer, EpisodeSteps, ReflectionsWanted
from erl_pipeline.generation.engine import Generation, GenerationRequest, Interrupted
from storage.trajectories import Trajectory

_STOP_POLL_SECONDS = 0.2


class SubmittingEngine(Protocol):
    """An engine that samples one turn while the caller does something else."""

    def submit(self, request: GenerationRequest) -> Future[Generation]:
        """Start sampling; the answer or the error comes with the future."""
        ...


def run_concurrently(
    episodes: Sequence[Callable[[], EpisodeSteps]],
    engine: SubmittingEngine,
    retrieve: Retrieve,
    on_episode: Callable[[list[Trajectory]], None],
    on_tokens: Callable[[int], None],
    max_in_flight: int,
    stop: threading.Event,
) -> list[list[Trajectory]]:
    """Run all episodes to their end; returns each one's trajectories, in order.

    At most `max_in_flight` episodes are under way; each is made when its turn comes. There is no barrier:
    an episode's next turn starts when its last one is answered, and its environment steps on this thread
    while others are sampled. Which episodes end first depends on the engine's speed, and `on_episode`
    sees them in that order. Raises `Interrupted` once `stop` is set, and what the engine raises.
    """
    results: dict[int, list[Trajectory]] = {}
    under_way: dict[int, EpisodeSteps] = {}
    sampling: dict[int, Future[Generation]] = {}
    wanted: dict[int, ReflectionsWanted] = {}
    answered: queue.SimpleQueue[tuple[int, Future[Generation]]] = queue.SimpleQueue()

    def advance(index: int, answer: Answer | None) -> None:
        try:
            # The first `send` of a generator must be None.
            want = under_way[index].send(answer)  # type: ignore[arg-type]
        except StopIteration as end:
            del under_way[index]
            results[index] = end.value
            on_episode(end.value)
            return
        if isinstance(want, ReflectionsWanted):
            wanted[index] = want
        else:
            sampling[index] = engine.submit(want.request)
            sampling[index].add_done_callback(lambda future: answered.put((index, future)))

    upcoming = iter(range(len(episodes)))
    try:
        while len(results) < len(episodes):
            while len(under_way) < max_in_flight and (index := next(upcoming, None)) is not None:
                under_way[index] = episodes[index]()
                advance(index, None)
            # Memory is asked for many at once, but never while an answer could send a server on its way.
            if wanted and answered.empty():
                asked, wanted = wanted, {}
                for index, hits in zip(asked, retrieve(list(asked.values())), strict=True):
                    advance(index, hits)
            elif sampling:
                index, future = _next_answered(answered, stop)
                del sampling[index]
                generation = future.result()
                on_tokens(len(generation.token_ids))
                advance(index, generation)
    finally:
        for future in sampling.values():
            future.cancel()
    return [results[index] for index in range(len(episodes))]


def _next_answered(
    answered: queue.SimpleQueue[tuple[int, Future[Generation]]], stop: threading.Event
) -> tuple[int, Future[Generation]]:
    while not stop.is_set():
        try:
            return answered.get(timeout=_STOP_POLL_SECONDS)
        except queue.Empty:
            continue
    raise Interrupted
