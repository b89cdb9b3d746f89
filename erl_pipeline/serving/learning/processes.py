"""The same function on many values, in several processes."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Protocol, TypeVar

from storage.errors import StoreError

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")
_AHEAD = 3
"""Results for each process that may wait until they are asked for."""
_GARBAGE_OBJECTS = 100_000
"""New objects after which a process looks for cycles among them. By default it does so after 700, which takes
a sixth of the time of work that makes many objects and no cycles."""


class Map(Protocol):
    """Results in the order of the values, as from the built-in `map`."""

    def __call__(
        self, function: Callable[[ValueT], ResultT], values: Iterable[ValueT], /
    ) -> Iterator[ResultT]: ...


@contextmanager
def mapping(processes: int) -> Iterator[Map]:
    """A map over so many processes, which end with the block and with this process; 1: the built-in `map`.
    Within the block this process looks for cycles as seldom as they do.

    Function, values and results have to be picklable. Raises StoreError if a process was killed.
    """
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE_OBJECTS)
    try:
        if processes == 1:
            yield map
            return
        # A fork of a process with threads can hang.
        spawn = get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_begin_process) as pool:
            yield partial(_map, pool, processes * _AHEAD)
    except BrokenProcessPool as error:
        raise StoreError(
            "a process that read the log was ended, perhaps for want of memory; the same command begins again"
        ) from error
    finally:
        gc.set_threshold(*before)


def _map(
    pool: ProcessPoolExecutor,
    ahead: int,
    function: Callable[[ValueT], ResultT],
    values: Iterable[ValueT],
    /,
) -> Iterator[ResultT]:
    waiting: deque[Future[ResultT]] = deque()
    for value in values:
        with _interrupts_held():  # It may begin a process.
            waiting.append(pool.submit(function, value))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block. A process that is begun in it never gets one: what it would
    write about it, even while it starts, is not for the user."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_process() -> None:
    """End when the parent is gone, even killed."""
    gc.set_threshold(_GARBAGE_OBJECTS)
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
