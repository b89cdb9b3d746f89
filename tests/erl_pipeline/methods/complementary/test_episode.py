"""Guided attempts see experience, free ones do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.episodes.context import EpisodeContext, EpisodeIdentity, RetrievalRequest, SampleRequest
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.methods.complementary.episode import Rules, chosen, run_episode
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import COMPACT, PROVENANCE, SETTINGS, TASK, limits, says, setup

RULES = Rules(COMPACT, retrieval=True)


@dataclass
class Played:
    row: Trajectory
    asked: list[str]


def hit(entry_id: str, text: str) -> Any:
    return SimpleNamespace(entry=SimpleNamespace(entry_id=entry_id, text=text), score=0.5)


def play(rules: Rules, sample: int = 0, withhold: float = 0.5, context_length: int = 128) -> Played:
    """An episode whose policy falls into the hole with its first move; the memory has two entries."""
    asked: list[str] = []

    async def ask_policy(request: SampleRequest) -> Generation:
        return says("down b")

    async def ask_memory(request: RetrievalRequest) -> list[Any]:
        asked.append(request.situation)
        return [hit("m-1", "a b ? ?"), hit("m-2", "c ? ? ?")]

    context = EpisodeContext(
        identity=EpisodeIdentity(TASK, sample, PROVENANCE),
        environment=GuardedEnvironment(lambda: ENVIRONMENT.open(SETTINGS, TASK), 60.0),
        chat=setup().chat,
        limits=limits(context_length),
        ask_policy=ask_policy,
        ask_memory=ask_memory,
        withhold=withhold,
    )
    (row,) = asyncio.run(run_episode(context, rules))
    return Played(row, asked)


def test_half_of_a_group_is_guided() -> None:
    played = [play(RULES, sample) for sample in range(8)]
    halves = [each.row.subgroup for each in played]
    assert (halves.count("guided"), halves.count("free")) == (4, 4)
    for each in played:
        if each.row.subgroup == "guided":
            assert each.row.memory_entry_ids == ("m-1",)
            assert "notes a b ? ?" in each.row.messages
            assert each.row.memory_version == "memory-1"
        else:
            assert (each.asked, each.row.memory_entry_ids, each.row.memory_version) == ([], (), "")
            assert "notes ? ? ? ?" in each.row.messages


def test_memory_is_searched_by_the_task_as_it_is_told_without_notes() -> None:
    guided = play(RULES, withhold=0.0)
    (situation,) = guided.asked
    assert situation == "@ # & # $ # # # # # # # # # # # notes ? ? ? ?"
    assert guided.row.subgroup is None


def test_without_a_memory_no_attempt_belongs_to_a_half() -> None:
    free = play(replace(RULES, retrieval=False))
    assert (free.row.subgroup, free.asked, free.row.memory_version) == (None, [], "")


def test_of_several_entries_the_best_is_preferred() -> None:
    both = play(replace(RULES, top_k=2), withhold=0.0).row
    assert both.memory_entry_ids == ("m-1", "m-2")
    assert "notes a b ? ?" in both.messages  # both know the first slot


def test_the_best_entry_may_give_its_place_to_the_next() -> None:
    found = [hit("m-1", ""), hit("m-2", "")]
    rules = replace(RULES, dropout=0.5)

    def shown(drawn: float, hits: list[Any]) -> list[str]:
        return [each.entry.entry_id for each in chosen(hits, rules, drawn)]

    assert (shown(0.5, found), shown(0.49, found), shown(0.0, found[:1])) == (["m-1"], ["m-2"], ["m-1"])
    drawn = [play(rules, sample, withhold=0.0).row.memory_entry_ids for sample in range(40)]
    assert 10 < drawn.count(("m-2",)) < 30
    assert drawn == [play(rules, sample, withhold=0.0).row.memory_entry_ids for sample in range(40)]


class Lengthening:
    """The prompts of FrozenLake, with notes behind them as they are: four tokens each."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        *before, last = COMPACT.attempt(instructions, observation, [])
        return [*before, user_message(" ".join([last["content"], *notes]))]


def test_notes_that_leave_no_room_are_left_out_the_best_last() -> None:
    """The prompt has 24 tokens; where nothing of the context is left, the episode would end the run."""
    rules = Rules(Lengthening(), retrieval=True, top_k=2)

    def shown(context_length: int) -> tuple[str, ...]:
        return play(rules, withhold=0.0, context_length=context_length).row.memory_entry_ids

    assert [shown(length) for length in (33, 32, 29, 28)] == [("m-1", "m-2"), ("m-1",), ("m-1",), ()]
