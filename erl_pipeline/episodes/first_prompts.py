"""Whether the first prompts of tasks leave room in the policy's context, before anything is sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING

from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes.context import EpisodeContext
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.episodes.play import EpisodeSetup
from erl_pipeline.episodes.rows import EpisodeIdentity
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.engines.interface import Generation
    from erl_pipeline.episodes.requests import RetrievalRequest, SampleRequest
    from storage.memory.view import MemoryHit

_LOOKED_AT = 256
_ENDLESS = 2**40  # tokens of a context in which every prompt has room


class _Measured(Exception):
    """The episode has asked for its first turn."""

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


def require_room(setup: EpisodeSetup, tasks: Sequence[Task]) -> None:
    """Raise `InputError`, naming the task with the longest, where first prompts fill the policy's context.

    Of many tasks only those with the largest payloads are looked at, since each takes about a millisecond;
    any other that is too long is reported when it is drawn. Environments that wait are not begun for this.
    """
    if setup.timing == "waiting":
        return
    looked_at = nlargest(_LOOKED_AT, tasks, key=lambda task: len(json.dumps(dict(task.payload))))
    lengths = asyncio.run(_lengths(setup, looked_at))
    longest = max(range(len(lengths)), key=lengths.__getitem__, default=None)
    if longest is None or lengths[longest] < setup.limits.context_length:
        return
    raise InputError(
        f"task {looked_at[longest].task_id}: its prompt has {lengths[longest]} tokens, but the policy's "
        f"context holds {setup.limits.context_length}; it is the longest of {len(tasks)} tasks. Remove it "
        "and others like it, or use a longer context"
    )


async def _lengths(setup: EpisodeSetup, tasks: Sequence[Task]) -> list[int]:
    return [await _length(setup, task) for task in tasks]


async def _length(setup: EpisodeSetup, task: Task) -> int:
    """Tokens of a task's first prompt; 0 where its environment does not begin, which its episode reports."""
    part, _ = setup.plugin.part(setup.settings, task)
    environment = GuardedEnvironment(
        partial(setup.plugin.open, setup.settings, task), setup.limits.step_seconds
    )
    context = EpisodeContext(
        identity=EpisodeIdentity(task, 0, setup.provenance),
        environment=environment,
        chat=setup.chat,
        limits=replace(setup.limits, context_length=_ENDLESS),
        ask_policy=_measure,
        ask_memory=_remember_nothing,
        mean_metrics=part.plugin.episodes.mean_metrics,
    )
    try:
        await setup.protocol(context)
    except _Measured as measured:
        return measured.tokens
    finally:
        await environment.close()
    return 0


async def _measure(asked: SampleRequest) -> Generation:
    raise _Measured(len(asked.request.prompt_token_ids))


async def _remember_nothing(asked: RetrievalRequest) -> list[MemoryHit]:
    return []
