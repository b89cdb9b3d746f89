"""Calls with the same body, and which of them a client means that sends one again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from aiohttp import web

AnswerT = TypeVar("AnswerT")
IsGone = Callable[[], bool]
"""Whether a client has closed its connection, so that no answer reaches it."""


def whether_gone(request: web.Request) -> IsGone:
    transport = request.transport
    return lambda: transport is None or transport.is_closing()


MOST_UNHEARD = 64
"""Most calls with one body that are kept for clients that have gone."""


class EqualCalls(Generic[AnswerT]):
    """The calls with one body. They may come from several users, or from one who lets several answers vote.
    Each that comes again gets an answer of its own: one that nobody has heard, or a new one."""

    def __init__(self) -> None:
        self._only: asyncio.Task[AnswerT] | None = None
        self._begun = 0
        self.unheard: dict[asyncio.Task[AnswerT], list[IsGone]] = {}
        """Calls whose answers have reached nobody yet, and all who have waited for them."""

    @property
    def calls(self) -> Collection[asyncio.Task[AnswerT]]:
        """Those that are kept."""
        return {*self.unheard, *([] if self._only is None else [self._only])}

    def sent_before(self) -> asyncio.Task[AnswerT] | None:
        """The call that comes again: one whose clients have gone without its answer, else the only one there
        was; None where nobody can tell which of several it is."""
        unheard = (call for call, waiting in self.unheard.items() if all(gone() for gone in waiting))
        return next(unheard, self._only)

    def begin(self, call: asyncio.Task[AnswerT]) -> None:
        """Add a new call."""
        self._begun += 1
        self._only = call if self._begun == 1 else None

    def await_answer(self, call: asyncio.Task[AnswerT], is_gone: IsGone) -> None:
        """Note that a client waits for a call, or waits for it again."""
        self.unheard.setdefault(call, []).append(is_gone)
        while len(self.unheard) > MOST_UNHEARD:
            del self.unheard[next(iter(self.unheard))]

    def answered(self, call: asyncio.Task[AnswerT], is_gone: IsGone) -> None:
        """Note that a call has its answer, which reaches this client unless that is gone."""
        if not is_gone():
            self.unheard.pop(call, None)

    def forget(self, call: asyncio.Task[AnswerT]) -> None:
        """A call that failed is answered when it comes again."""
        self._begun -= 1
        self.unheard.pop(call, None)
        if self._only is call:
            self._only = None
