"""Episodes of the next shards, on the places of an engine that the last episodes of a shard leave free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.engines.interface import AsynchronousEngine, EngineWorker
    from erl_pipeline.episodes.context import Retrieve
    from erl_pipeline.episodes.play import ConcurrentSampling, PlayedEpisodes, ShardEpisodes
    from storage.tables.trajectories import Trajectory

_KEPT = "episodes ahead"


class EpisodesAhead:
    """What a worker plays for stages that it is not asked for yet; a context manager that ends it.

    The engine's event loop has to go on between two calls of its `run`. Shards that are played one after the
    other sample from one model and see one memory. What is played ahead is for the stages that sample next:
    whoever does something else with the engine calls `drop` first.
    """

    def __init__(self) -> None:
        self._engine: AsynchronousEngine | None = None
        self._begun: dict[str, ShardEpisodes] = {}

    def __enter__(self) -> EpisodesAhead:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    def __contains__(self, artifact_id: str) -> bool:
        return artifact_id in self._begun

    def play(
        self,
        artifact_id: str,
        make: Callable[[str], ShardEpisodes],
        following: Iterable[str],
        sampling: ConcurrentSampling,
        retrieve: Retrieve,
        on_episode: Callable[[list[Trajectory]], None],
        stop: threading.Event,
    ) -> PlayedEpisodes:
        """Play the episodes of a shard, or what is left of them, and begin those of following shards on
        places that are free.

        As many following shards are begun as have episodes for all places of the engine. Raises as
        `erl_pipeline.episodes.play.play_episodes`; what was begun is then ended.

        Args:
            artifact_id: of the shard.
            make: gives the episodes of a shard by its id.
            following: the shards after it, which are asked for next.
        """
        # A library for tables, which a process that only plans need not import.
        from erl_pipeline.episodes import loop

        if artifact_id not in self._begun or sampling.engine is not self._engine:
            self.drop()
            self._engine = sampling.engine
            self._sampler = loop.ConcurrentSampler(sampling.engine, retrieve, sampling.on_tokens)
            self._queue = loop.EpisodeQueue(self._sampler, sampling.max_in_flight)
        self._sampler.on_tokens = sampling.on_tokens
        new = []
        if artifact_id not in self._begun:
            new.append(make(artifact_id))
            self._begun[artifact_id] = new[0]
        episodes = self._begun.pop(artifact_id)
        ahead = sum(len(each.to_play.episodes) for each in self._begun.values())
        for each in following:
            if ahead >= sampling.max_in_flight:
                break
            if each not in self._begun:
                self._begun[each] = make(each)
                new.append(self._begun[each])
                ahead += len(self._begun[each].to_play.episodes)

        async def playing() -> list[list[Trajectory]]:
            for each in new:
                self._queue.add(each.to_play)
            return await self._queue.results(episodes.to_play, on_episode, stop)

        try:
            return episodes.played(sampling.engine.run(playing()))
        except BaseException:
            self._begun.clear()
            raise

    def drop(self) -> None:
        """End all episodes, and wait until their environments are closed."""
        if self._begun and self._engine is not None:
            self._begun.clear()
            self._engine.run(self._queue.cancel())


def episodes_ahead(worker: EngineWorker) -> EpisodesAhead:
    """What a worker plays ahead; to be called when the engine is open, which ends after it."""
    return worker.keep(_KEPT, EpisodesAhead)


def end_episodes_ahead(worker: EngineWorker, but_for: str = "") -> None:
    """End what a worker plays ahead, before it samples for another artifact, or trains. Nothing ends if the
    episodes of `but_for` are among it."""
    kept: EpisodesAhead | None = worker.kept(_KEPT)
    if kept is not None and but_for not in kept:
        kept.drop()
