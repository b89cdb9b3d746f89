"""Tasks whose first prompt fills the policy's context are reported before anything is sampled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.play import require_room
from erl_pipeline.policies.tiny.model import build_tokenizer
from storage.errors import InputError
from tests.erl_pipeline.episodes.script import limits
from tests.erl_pipeline.episodes.scripted_environment import Scripted, scripted, tasks


async def raises() -> str:
    raise KeyError("no such page")


def shows(observation: str) -> Callable[[], Awaitable[str]]:
    async def reset() -> str:
        return observation

    return reset


def test_the_longest_task_is_named() -> None:
    """The prompt of task t0 has two words, that of t1 twenty, that of t2 forty."""
    words = {"t0": 2, "t1": 20, "t2": 40}
    given, opened = scripted(lambda task: Scripted(on_reset=shows("@ " * words[task.task_id])))
    require_room(replace(given, limits=limits(100)), tasks(3))
    with pytest.raises(
        InputError,
        match=r"task t2: its prompt has \d+ tokens, but the policy's context holds 20; "
        r"it is the longest of 3 tasks",
    ):
        require_room(replace(given, limits=limits(20)), tasks(3))
    assert all(environment.closed == 1 and not environment.said for environment in opened)


def test_a_chat_template_that_refuses_a_prompt_is_named() -> None:
    given, _ = scripted(lambda task: Scripted(on_reset=shows("@")))
    tokenizer = build_tokenizer(["@"], 128)
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(InputError, match=r"chat template refuses the messages of .*: System role not"):
        require_room(replace(given, chat=ChatTokenizer(tokenizer)), tasks(1))


def test_what_fails_is_left_to_its_episode_and_what_waits_is_not_begun() -> None:
    given, _ = scripted(lambda task: Scripted(on_reset=raises))
    require_room(replace(given, limits=limits(20)), tasks(2))
    given, opened = scripted(lambda task: Scripted(on_reset=shows("@ " * 40)), "waiting")
    require_room(replace(given, limits=limits(20)), tasks(2))
    assert not opened
