"""Which calls, episodes and feedback are known, from the log of this server and of those before it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from storage.artifacts.recipe import digest
from storage.serving.traffic import Feedback, Record, ServedTurn


@dataclass(eq=False)
class KnownEpisode:
    """An episode of a tenant. `user` is the digest of its user's name, empty for none.

    A client may go on with a name long after the episode is over, as with the id of a thread. Then another
    episode begins under this name, whose id is the name and a number.
    """

    episode_id: str
    tenant: str
    user: str
    is_over: bool = False
    """Whether a client has closed it."""
    heard: float = 0.0
    """When something was last logged of it, in seconds since 1970."""

    @property
    def name(self) -> str:
        """What clients call it."""
        return _named(self.episode_id)[0]


LONGEST_NAME = 240
"""Characters of an episode's name that a client gives, so that its later parts have valid ids too."""

_PART = re.compile(r"(.+)~part-(\d{1,6})")


def next_id(ended: KnownEpisode) -> str:
    """The id of the episode that goes on under the name of one that is over."""
    name, number = _named(ended.episode_id)
    return f"{name}~part-{number + 1}"


def is_part(episode_id: str) -> bool:
    """Whether it is an id that the server gives."""
    return _PART.fullmatch(episode_id) is not None


def _named(episode_id: str) -> tuple[str, int]:
    """The name of an episode, and its number among those of this name."""
    found = _PART.fullmatch(episode_id)
    return (episode_id, 1) if found is None else (found[1], int(found[2]))


class KnownTraffic:
    """What clients may refer to. What belongs to another tenant is not known."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._episodes: dict[tuple[str, str], KnownEpisode] = {}
        self._newest: dict[tuple[str, str], KnownEpisode] = {}
        self._calls: dict[str, KnownEpisode] = {}
        self._feedback: dict[str, str] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take in what was logged."""
        if isinstance(record, ServedTurn):
            own = KnownEpisode(record.episode_id, record.tenant, record.user)
            known = self.register(own)
            known.heard = max(known.heard, record.arrived.timestamp())
            # Another server may have begun an episode of another user under the same id.
            self._calls[record.call_id] = known if known.user == record.user else own
        elif isinstance(record, Feedback):
            self._feedback[record.feedback_id] = said_by(record)
        else:
            self.register(KnownEpisode(record.episode_id, record.tenant, "")).is_over = True

    def register(self, episode: KnownEpisode) -> KnownEpisode:
        """Make an episode known; returns what is known of it already, if anything is."""
        known = self._episodes.setdefault((episode.tenant, episode.episode_id), episode)
        newest = self._newest.setdefault((known.tenant, known.name), known)
        if _named(newest.episode_id) < _named(known.episode_id):
            self._newest[known.tenant, known.name] = known
        return known

    def episode(self, tenant: str, episode_id: str) -> KnownEpisode | None:
        """A tenant's episode of this id, or the newest one of this name; None if there is none."""
        return self._newest.get((tenant, episode_id)) or self._episodes.get((tenant, episode_id))

    def newest(self, tenant: str, episode_id: str) -> KnownEpisode | None:
        """The newest episode of the name of this one; None if nothing of this name is known."""
        return self._newest.get((tenant, _named(episode_id)[0])) or self._episodes.get((tenant, episode_id))

    def episode_of_call(self, tenant: str, call_id: str) -> KnownEpisode | None:
        """The episode of a tenant's call; None if the tenant has no such call."""
        found = self._calls.get(call_id)
        return found if found is not None and found.tenant == tenant else None

    def said(self, feedback_id: str) -> str | None:
        """What was logged under an id, as `said_by` tells it; None for nothing."""
        return self._feedback.get(feedback_id)


def feedback_id_of(tenant: str, idempotency_key: str | None) -> str:
    """The id for a piece of feedback: the same for the same key of a tenant."""
    if idempotency_key is None:
        return f"fb-{secrets.token_hex(12)}"
    return f"fb-{digest([tenant, idempotency_key])[:24]}"


def said_by(given: Feedback) -> str:
    """A digest of what somebody said, equal if they said it again."""
    return digest([_named(given.episode_id)[0], given.call_id or "", given.metric, given.value])
