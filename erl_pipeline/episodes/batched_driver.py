"""Runs episodes in step on an engine that answers whole batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from erl_pipeline.engines.interface import GenerationEngine
from erl_pipeline.episodes.requests import Answer, EpisodeSteps, Phase, ReflectionsWanted, TurnWanted, Wanted
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory

Retrieve = Callable[[Sequence[ReflectionsWanted]], list[list[MemoryHit]]]


def run_batched(
    episodes: Sequence[EpisodeSteps],
    engine: GenerationEngine,
    retrieve: Retrieve,
    on_episode: Callable[[list[Trajectory]], None],
) -> list[list[Trajectory]]:
    """Run all episodes to their end; returns each one's trajectories, in order.

    Every round answers, in one batch, all episodes that stand in the earliest phase: first attempts
    turn by turn, then retrievals, reflections and second attempts. What is batched together depends
    on the episodes alone, so the same shard gives the same bytes.
    """
    results: list[list[Trajectory]] = [[] for _ in episodes]
    waiting: dict[int, Wanted] = {}

    def advance(index: int, answer: Answer | None) -> None:
        try:
            # The first `send` of a generator must be None.
            waiting[index] = episodes[index].send(answer)  # type: ignore[arg-type]
        except StopIteration as end:
            results[index] = end.value
            on_episode(end.value)

    for index in range(len(episodes)):
        advance(index, None)
    while waiting:
        phase = min(wanted.phase for wanted in waiting.values())
        round_ = sorted(index for index, wanted in waiting.items() if wanted.phase == phase)
        answers = _answer([waiting.pop(index) for index in round_], phase, engine, retrieve)
        for index, answer in zip(round_, answers, strict=True):
            advance(index, answer)
    return results


def _answer(
    wanted: Sequence[Wanted], phase: Phase, engine: GenerationEngine, retrieve: Retrieve
) -> Sequence[Answer]:
    if phase == Phase.RETRIEVAL:
        return retrieve([w for w in wanted if isinstance(w, ReflectionsWanted)])
    return engine.generate([w.request for w in wanted if isinstance(w, TurnWanted)])
