"""Calls with the same body, and which of them a client means that sends one again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from aiohttp import web

AnswerT = TypeVar("AnswerT")
IsGone = Callable[[], bool]
"""Whether a client has closed its connection, so that no answer reaches it."""


def whether_gone(request: web.Request) -> IsGone:
    transport = request.transport
    return lambda: transport is None or transport.is_closing()


class EqualCalls(Generic[AnswerT]):
    """The calls with one body. They may come from several users, or from one who lets several answers vote.
    Each that comes again gets an answer of its own, as long as there is one that nobody has heard."""

    def __init__(self) -> None:
        self.newest: asyncio.Task[AnswerT] | None = None
        self.unheard: dict[asyncio.Task[AnswerT], IsGone] = {}
        """Calls whose answers have reached nobody yet."""

    def sent_before(self) -> asyncio.Task[AnswerT] | None:
        """The call that comes again: one whose client has gone without its answer, else the newest."""
        return next((call for call, is_gone in self.unheard.items() if is_gone()), self.newest)

    def await_answer(self, call: asyncio.Task[AnswerT], is_gone: IsGone) -> None:
        self.unheard[call] = is_gone

    def answered(self, call: asyncio.Task[AnswerT]) -> None:
        """Note that a call has its answer, which reaches its client unless that is gone."""
        if call in self.unheard and not self.unheard[call]():
            del self.unheard[call]

    def forget(self, call: asyncio.Task[AnswerT]) -> None:
        """A call that failed is answered when it comes again."""
        self.unheard.pop(call, None)
        if self.newest is call:
            self.newest = None
