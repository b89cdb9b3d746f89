"""Episodes that are under way: which one a call belongs to, and the token sequences of each.

Clients that name no episode send their whole history with each call. A history that ends in an answer which
was given to the same user behind the same key goes on with the episode of that answer. Of several equal ones
the first goes on, and then the next: nobody can tell them apart.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from erl_pipeline.environments.messages import answer_message
from erl_pipeline.episodes.gateway.api import RequestRefused
from erl_pipeline.episodes.gateway.sequences import (
    Answer,
    AttemptSequences,
    Call,
    History,
    RecordedTurn,
    history_of,
    last_answer,
)
from erl_pipeline.serving.known import LONGEST_NAME, KnownEpisode, KnownTraffic, is_part, next_id
from erl_pipeline.serving.notes import NO_NOTES, Notes
from erl_pipeline.serving.policies import OpenedPolicy
from erl_pipeline.serving.requests import ServedRequest

_Asker = tuple[str, str]
"""Tenant and user."""

MOST_TOKENS = 20_000_000
"""Most tokens of all histories that are kept; of those that were heard of longest ago, none are then."""


@dataclass(eq=False)
class Episode:
    """An episode, the token sequences that were sampled for it with one checkpoint, and the id and the notes
    of each turn in them."""

    known: KnownEpisode
    task_type: str = ""
    checkpoint_id: str = ""
    sequences: AttemptSequences | None = None
    turn_ids: dict[RecordedTurn, str] = field(default_factory=dict)
    notes: dict[RecordedTurn, Notes] = field(default_factory=dict)
    histories: list[History] = field(default_factory=list)
    tokens: int = 0
    under_way: int = 0
    heard: float = 0.0

    def sequences_with(self, policy: OpenedPolicy) -> AttemptSequences:
        """The sequences of a checkpoint. With another one than before they begin anew."""
        if self.sequences is None or self.checkpoint_id != policy.checkpoint_id:
            self.sequences = AttemptSequences(policy.chat, policy.end_token_ids)
            self.checkpoint_id = policy.checkpoint_id
        return self.sequences


def known_notes(episode: Episode, sequences: AttemptSequences, request: ServedRequest) -> Notes | None:
    """The notes in the conversation that a call goes on with; None for one that begins."""
    messages = request.chat.messages
    offered, keys = history_of(messages, request.chat.tools)
    turn = sequences.turn_of((offered, keys[: last_answer(messages) + 1]))
    return None if turn is None else episode.notes.get(turn, NO_NOTES)


class OpenEpisodes:
    """Episodes under way, up to a bound of tokens, until nothing is heard of one for `idle_seconds`."""

    def __init__(
        self,
        traffic: KnownTraffic,
        idle_seconds: float,
        most_tokens: int = MOST_TOKENS,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._traffic = traffic
        self._idle_seconds = idle_seconds
        self._most_tokens = most_tokens
        self._clock, self._now = clock, now
        self._open: OrderedDict[tuple[str, str], Episode] = OrderedDict()
        self._by_history: dict[tuple[_Asker, History], deque[Episode]] = {}
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._open)

    def of_call(self, tenant: str, user: str, request: ServedRequest) -> Episode:
        """The episode that a call belongs to, which may begin with it. `user` is the digest of the name.

        Raises `RequestRefused` for one that is over, or that is another user's.
        """
        self._forget_old()
        episode = self._by_name(tenant, user, request.episode_id) if request.episode_id else None
        if episode is None:
            episode = self._going_on((tenant, user), request) if request.episode_id is None else None
        if episode is None:
            episode_id = request.episode_id or f"episode-{secrets.token_hex(12)}"
            episode = Episode(KnownEpisode(episode_id, tenant, user))
        self._open[tenant, episode.known.episode_id] = episode
        self._open.move_to_end((tenant, episode.known.episode_id))
        episode.heard = self._clock()
        episode.task_type = request.task_type or episode.task_type
        return episode

    def record(
        self, episode: Episode, call: Call, answer: Answer, request: ServedRequest, turn_id: str, notes: Notes
    ) -> None:
        """Remember an answer, so that calls can go on with it, unless the episode was closed meanwhile."""
        turn = call.answered
        assert turn is not None
        if episode.known.is_over:
            return
        name = episode.known.tenant, episode.known.episode_id
        if name in self._open:
            self._open.move_to_end(name)
        episode.turn_ids[turn], episode.notes[turn] = turn_id, notes
        episode.heard, episode.known.heard = self._clock(), self._now()
        episode.tokens += len(turn.token_ids)
        self._tokens += len(turn.token_ids)
        history = history_of((*request.chat.messages, answer_message(answer.turn)), request.chat.tools)
        episode.histories.append(history)
        asker = episode.known.tenant, episode.known.user
        self._by_history.setdefault((asker, history), deque()).append(episode)

    def close(self, known: KnownEpisode) -> None:
        """Forget an episode that a client has closed."""
        known.is_over = True
        episode = self._open.pop((known.tenant, known.episode_id), None)
        if episode is not None:
            self._forget(episode)

    def _by_name(self, tenant: str, user: str, episode_id: str) -> Episode | None:
        known = self._traffic.newest(tenant, episode_id)
        episode = self._open.get((tenant, episode_id if known is None else known.episode_id))
        known = known if episode is None else episode.known
        if known is None and is_part(episode_id):
            raise RequestRefused(
                f"there is no episode {episode_id}, and such an ending is given by the server alone",
                "metadata.episode_id",
            )
        if known is None and len(episode_id) > LONGEST_NAME:
            raise RequestRefused(
                f"metadata.episode_id: it may have at most {LONGEST_NAME} characters", "metadata.episode_id"
            )
        if known is None:
            return None
        if known.is_over:
            raise RequestRefused(
                f"episode {episode_id} was closed; use another id", "metadata.episode_id", "episode_closed"
            )
        if user and user != known.user:
            raise RequestRefused(
                f"episode {episode_id} began with another user, or with none; an episode has one user",
                "metadata.user",
            )
        if episode is None and known.heard < self._now() - self._idle_seconds:
            # It is over, and may be sealed already: what is said now belongs to an episode of its own.
            following = next_id(known)
            begun = self._open.get((tenant, following))
            return begun or Episode(KnownEpisode(following, tenant, known.user))
        return episode or Episode(known)

    def _going_on(self, asker: _Asker, request: ServedRequest) -> Episode | None:
        messages = request.chat.messages
        last = last_answer(messages)
        if last < 0:
            return None
        offered, keys = history_of(messages, request.chat.tools)
        found = self._by_history.get((asker, (offered, keys[: last + 1])))
        if not found:
            return None
        found.rotate(-1)
        return found[-1]

    def _forget_old(self) -> None:
        before, tokens, over = self._clock() - self._idle_seconds, self._tokens, []
        for name, oldest in self._open.items():
            if oldest.under_way:
                continue
            if oldest.heard >= before and tokens <= self._most_tokens:
                break
            tokens -= oldest.tokens
            over.append(name)
        for name in over:
            self._forget(self._open.pop(name))

    def _forget(self, episode: Episode) -> None:
        self._tokens -= episode.tokens
        asker = episode.known.tenant, episode.known.user
        for history in episode.histories:
            key = asker, history
            found = self._by_history.get(key)
            if found is not None and episode in found:
                found.remove(episode)
                if not found:
                    del self._by_history[key]
