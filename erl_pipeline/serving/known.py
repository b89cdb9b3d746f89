"""Which calls, episodes and feedback are known, from the log of this server and of those before it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from storage.artifacts.recipe import digest
from storage.serving.traffic import Feedback, Record, ServedTurn


@dataclass(eq=False)
class KnownEpisode:
    """An episode of a tenant. `user` is the digest of its user's name, empty for none."""

    episode_id: str
    tenant: str
    user: str
    is_over: bool = False
    """Whether a client has closed it."""


class KnownTraffic:
    """What clients may refer to. What belongs to another tenant is not known."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._episodes: dict[tuple[str, str], KnownEpisode] = {}
        self._calls: dict[str, KnownEpisode] = {}
        self._feedback: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take in what was logged."""
        if isinstance(record, ServedTurn):
            known = self.register(KnownEpisode(record.episode_id, record.tenant, record.user))
            self._calls[record.call_id] = known
        elif isinstance(record, Feedback):
            self._feedback.add(record.feedback_id)
        else:
            self.register(KnownEpisode(record.episode_id, record.tenant, "")).is_over = True

    def register(self, episode: KnownEpisode) -> KnownEpisode:
        """Make an episode known; returns what is known of it already, if anything is."""
        return self._episodes.setdefault((episode.tenant, episode.episode_id), episode)

    def episode(self, tenant: str, episode_id: str) -> KnownEpisode | None:
        """A tenant's episode of this id; None if there is none."""
        return self._episodes.get((tenant, episode_id))

    def episode_of_call(self, tenant: str, call_id: str) -> KnownEpisode | None:
        """The episode of a tenant's call; None if the tenant has no such call."""
        found = self._calls.get(call_id)
        return found if found is not None and found.tenant == tenant else None

    def feedback_id(self, tenant: str, idempotency_key: str | None) -> tuple[str, bool]:
        """The id for a piece of feedback, and whether it has been logged already."""
        if idempotency_key is None:
            return f"fb-{secrets.token_hex(12)}", False
        found = f"fb-{digest([tenant, idempotency_key])[:24]}"
        return found, found in self._feedback
