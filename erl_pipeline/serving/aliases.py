"""Which checkpoint answers a call: what the aliases mean now, and the change to another one under traffic."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from erl_pipeline.serving.policies import OpenedPolicy, OpenPolicy
from storage.errors import InputError, PipelineError
from storage.serving.aliases import AliasChange, alias_file, current_aliases

_LOOK_SECONDS = 1.0
_FAILURES = (PipelineError, RuntimeError, OSError, MemoryError)
"""Frameworks raise RuntimeError, such as where a device has no memory left."""


@dataclass(frozen=True)
class Canary:
    """Another alias, and the share of users that it answers, from 0 to 1."""

    alias: str
    share: float

    @classmethod
    def parse(cls, text: str) -> Canary:
        """Read `ALIAS:SHARE`. Raises InputError."""
        alias, _, share = text.rpartition(":")
        try:
            found = cls(alias, float(share))
        except ValueError:
            found = cls("", 0.0)
        if not found.alias or not 0.0 <= found.share <= 1.0:
            raise InputError(
                f"--canary {text}: allowed is ALIAS:SHARE with a share from 0 to 1, such as candidate:0.05"
            )
        return found

    def answers(self, name: str) -> bool:
        """Whether a user, or an episode, belongs to its share: always the same ones for one share, and all
        of these for a larger one."""
        drawn = int.from_bytes(hashlib.sha256(name.encode("utf-8")).digest()[:8], "big")
        return drawn < self.share * 2**64


@dataclass
class _Served:
    """An alias: its policy, and the calls that are under way. `is_open` is cleared while new calls wait."""

    policy: OpenedPolicy
    under_way: int = 0
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    is_idle: asyncio.Event = field(default_factory=asyncio.Event)


class ServedAliases:
    """The policies behind one alias and its canary. Lives in one event loop.

    Args:
        opened: what is open already: at least the policy of `alias`.
        open_policy: opens what an alias is changed to.
        tell: shows people one line.
    """

    def __init__(
        self,
        store_uri: str,
        run: str,
        alias: str,
        canary: Canary | None,
        opened: Sequence[OpenedPolicy],
        open_policy: OpenPolicy,
        tell: Callable[[str], None],
    ) -> None:
        self._store_uri, self._run = store_uri, run
        self._alias, self._canary = alias, canary
        self._open_policy = open_policy
        self._tell = tell
        self._served: dict[str, _Served] = {}
        self.failures: dict[str, str] = {}
        """Alias -> why its last change was not followed."""
        self._looked_at: tuple[int, int] | None = None
        for policy in opened:
            self._add(policy)

    @property
    def policies(self) -> Iterator[OpenedPolicy]:
        """What is open now."""
        return (served.policy for served in self._served.values())

    @asynccontextmanager
    async def chosen_for(self, name: str) -> AsyncIterator[OpenedPolicy]:
        """The policy that answers a call of a user, or of an episode; it stays open within the block."""
        canary = self._canary
        is_canary = canary is not None and canary.alias in self._served and canary.answers(name)
        served = self._served[canary.alias if canary is not None and is_canary else self._alias]
        while not served.is_open.is_set():
            await served.is_open.wait()
        served.under_way += 1
        served.is_idle.clear()
        try:
            yield served.policy
        finally:
            served.under_way -= 1
            if not served.under_way:
                served.is_idle.set()

    async def watch(self) -> None:
        """Follow the changes of the aliases; for a task of its own."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.follow()

    async def follow(self) -> None:
        """Open what the aliases mean now, if that has changed. Calls under way end with the checkpoint that
        they began with. One that cannot be opened is not served: the one before it stays. Where an engine has
        given up, its checkpoint is opened again."""
        for known in list(self._served.values()):
            if not known.policy.is_serving():
                alias = known.policy.change.alias
                self.failures[alias] = "its engine has failed too often, and is started again"
                self._tell(f"{alias}: {self.failures[alias]}")
                await self._hand_over(known.policy.change, known)
        try:
            found = alias_file(self._store_uri, self._run).stat()
            state = (found.st_mtime_ns, found.st_size)
            if state == self._looked_at:
                return
            changes = current_aliases(self._store_uri, self._run)
            self._looked_at = state
        except (OSError, PipelineError) as error:
            self._tell(f"The aliases cannot be read, and stay as they are: {error}")
            return
        for alias in (self._alias, *(() if self._canary is None else (self._canary.alias,))):
            change, served = changes.get(alias), self._served.get(alias)
            if change is None:
                continue
            if served is None or served.policy.checkpoint_id != change.checkpoint_id:
                await self._hand_over(change, served)
            else:
                self.failures.pop(alias, None)  # It was set back to what answers.

    async def _hand_over(self, change: AliasChange, served: _Served | None) -> None:
        what = f"{change.alias}: checkpoint {change.checkpoint_id[:12]}"
        try:
            if served is None:
                self._add(await asyncio.to_thread(self._open_policy, change))
            elif served.policy.in_place:
                await self._replace(change, served)
            else:
                served.policy = await asyncio.to_thread(self._open_policy, change)
        except _FAILURES as error:
            self.failures[change.alias] = str(error) or type(error).__name__
            self._tell(f"{what} cannot be opened, and nothing changes: {self.failures[change.alias]}")
            return
        self.failures.pop(change.alias, None)
        self._tell(f"{what} answers from now on")

    async def _replace(self, change: AliasChange, served: _Served) -> None:
        """Give the checkpoint to an engine that holds one only, while no call is under way."""
        served.is_open.clear()
        try:
            await served.is_idle.wait()
            served.policy = await asyncio.to_thread(self._open_policy, change)
        except _FAILURES:
            served.policy = await asyncio.to_thread(self._open_policy, served.policy.change)
            raise
        finally:
            served.is_open.set()

    def _add(self, policy: OpenedPolicy) -> None:
        served = self._served[policy.change.alias] = _Served(policy)
        served.is_open.set()
        served.is_idle.set()
