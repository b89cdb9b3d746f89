"""Deadlines of requests that only a server's standstill lets pass, not a long answer or a long queue.

A vLLM server counts in `/metrics` the tokens that each copy of its model has read and sampled for anybody's
requests, at every step. Streamed answers would show the same, but at the price of a message for each token;
`/health` answers also where the process that computes hangs.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

_COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
_MOST_SECONDS_BETWEEN_LOOKS = 5.0


def tokens_by_copy(metrics: str) -> Counter[int]:
    """The tokens that each copy of the model has read and sampled, from the text of `/metrics`; empty where
    the server does not count them."""
    tokens: Counter[int] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name in _COUNTERS:
                tokens[int(sample.labels["engine"])] += int(sample.value)
    return tokens


class ProgressDeadlines:
    """Deadlines of requests to one server, each of which moves on when the copy that it is at does.

    Args:
        seconds: how long a copy may stand still.
        copies: copies of the model that the server keeps.
    """

    def __init__(self, seconds: float, copies: int) -> None:
        self.seconds = seconds
        self._copies = copies
        self._tokens: Counter[int] = Counter()
        self._waiting: list[set[asyncio.Timeout]] = [set() for _ in range(copies)]

    @property
    def seconds_between_looks(self) -> float:
        """How often `see` should be called."""
        return min(_MOST_SECONDS_BETWEEN_LOOKS, self.seconds / 4)

    @property
    def any_waiting(self) -> bool:
        """Whether there is a request whose deadline could move."""
        return any(self._waiting)

    @asynccontextmanager
    async def of_request(self, copy: int) -> AsyncIterator[None]:
        """Cancels the block, and raises TimeoutError, when the copy has stood still for too long."""
        async with asyncio.timeout(self.seconds) as deadline:
            self._waiting[copy].add(deadline)
            try:
                yield
            finally:
                self._waiting[copy].discard(deadline)

    def see(self, tokens: Counter[int]) -> None:
        """Move the deadlines of all requests at copies whose tokens are not those of the call before."""
        moved_on = asyncio.get_running_loop().time() + self.seconds
        for copy, waiting in enumerate(self._waiting):
            # A server that was not asked to keep copies may still keep some, and choose among them.
            of_copy = {copy} if self._copies > 1 else tokens.keys() | self._tokens.keys()
            if any(tokens[each] != self._tokens[each] for each in of_copy):
                for deadline in waiting:
                    if not deadline.expired():
                        deadline.reschedule(moved_on)
        self._tokens = tokens
