"""Whole runs in which the next shard's episodes begin on places that the last ones of a shard leave free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.engines.interface import OpenedEngine
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.stages.rollouts import playing
from tests.erl_pipeline.episodes.round_engine import RoundEngine
from tests.erl_pipeline.runs.small_runs import SMALL, go, hashes, ids, small

PLACES = 4
CONFIG = small(rollouts={**SMALL["rollouts"], "tasks_per_iteration": 4})
"""Four shards of two episodes, for four places."""


class Rounds:
    """The rounds of a run's engine; with `ahead` its event loop goes on between stages."""

    def __init__(self, patch: pytest.MonkeyPatch, *, ahead: bool) -> None:
        self.engines: list[RoundEngine] = []
        self._open = playing.opened_engine
        self._ahead = ahead
        patch.setattr(playing, "opened_engine", self._opened)

    def _opened(self, *args: Any, **named: Any) -> OpenedEngine:
        call, *_ = args
        batches = self._open(*args, **named).batches
        engine = call.resources.keep(
            "rounds", lambda: RoundEngine(lambda request: batches.generate([request])[0])
        )
        # A cache between turns holds what was sampled last, and would change the last bits of others.
        turn = count()
        engine.answer = lambda request: batches.generate(
            [replace(request, conversation=f"{request.conversation} {next(turn)}")]
        )[0]
        self.engines = [engine]
        return OpenedEngine(batches, engine, PLACES, goes_on=self._ahead)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The store of a run whose shards are played one after the other, and the engine's rounds."""
    with pytest.MonkeyPatch.context() as patch:
        rounds, store = Rounds(patch, ahead=False), tmp_path_factory.mktemp("alone")
        go(CONFIG, store)
        return store, rounds.engines[0].rounds


def shards(found: Mapping[StageKey, str]) -> list[str]:
    return [artifact for place, artifact in found.items() if place.stage == "rollout_shard"]


def test_fewer_rounds_and_the_same_bytes(
    alone: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, before = alone
    rounds = Rounds(monkeypatch, ahead=True)
    go(CONFIG, tmp_path)
    assert hashes(tmp_path) == hashes(store)
    assert len(shards(ids(tmp_path))) == 8
    (engine,) = rounds.engines
    assert engine.most_in_flight == PLACES
    # Two of four places were empty all the time.
    assert engine.rounds < 0.75 * before


def test_a_run_that_is_stopped_between_two_shards_commits_the_first_and_goes_on(
    alone: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = alone
    Rounds(monkeypatch, ahead=True)
    go(CONFIG, tmp_path, stop_after="rollout_shard 0001 of iteration 1")
    assert len(shards(ids(tmp_path))) == 2
    notes = go(CONFIG, tmp_path)
    assert "rollout_shard 0000 of iteration 1" not in notes.made
    assert "rollout_shard 0002 of iteration 1" in notes.made
    assert hashes(tmp_path) == hashes(store)
