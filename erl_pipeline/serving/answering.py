"""Answering calls: each by the checkpoint of an alias, token by token in its episode, and into the log."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from erl_pipeline.config.rollouts import SamplingConfig
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.dialogue import LONG_TEXT
from erl_pipeline.episodes.gateway.api import (
    ChatCompletion,
    ChatRequest,
    Choice,
    RequestRefused,
    tokenizing,
    tools_refused,
)
from erl_pipeline.serving.aliases import ServedAliases
from erl_pipeline.serving.episodes import Episode, OpenEpisodes, known_notes
from erl_pipeline.serving.feedback import feedback_record, known_episode
from erl_pipeline.serving.known import KnownEpisode, KnownTraffic
from erl_pipeline.serving.notes import NO_NOTES, NoteSearch
from erl_pipeline.serving.placed import PlacedCall, served_turn
from erl_pipeline.serving.policies import OpenedPolicy
from erl_pipeline.serving.requests import FeedbackRequest, ServedRequest, Unavailable
from erl_pipeline.serving.settings import ServingSettings
from erl_pipeline.serving.writing import LogWriter
from storage.artifacts.recipe import derive_seed, digest
from storage.errors import EngineError, StoreError
from storage.serving.traffic import EpisodeEnd, Record
from storage.serving.users import digest_of

_LOG = logging.getLogger(__name__)
_Made = TypeVar("_Made")
STOP_SECONDS = 60.0
"""How long calls under way may go on after the server was told to stop."""


class PolicyService:
    """Answers the calls of all clients, and takes their feedback. Lives in one event loop.

    Args:
        sampling: how turns are sampled that leave it to the server.
        user_key: of the digests of users' names.
        notes: finds notes for conversations; None where there is no memory.
    """

    def __init__(
        self,
        settings: ServingSettings,
        sampling: SamplingConfig,
        aliases: ServedAliases,
        traffic: KnownTraffic,
        log: LogWriter,
        user_key: bytes,
        notes: NoteSearch | None,
    ) -> None:
        self._settings, self._sampling = settings, sampling
        self._user_key = user_key
        self._traffic = traffic
        self.aliases, self.log, self.notes = aliases, log, notes
        self.episodes = OpenEpisodes(traffic, settings.episode.idle_minutes * 60)
        self.under_way = 0
        self._choices_under_way = 0
        self.is_stopping = False
        self._ended = asyncio.Event()
        self._one_long = asyncio.Lock()
        self._draw = random.Random(0)

    async def place(self, tenant: str, request: ServedRequest) -> PlacedCall:
        """Find out what a call is sampled after, with which checkpoint. It has to be given to `answer`.

        Raises `RequestRefused` for one that cannot be answered.
        """
        arrived, began = datetime.now(UTC), time.monotonic()
        self._require_room(request.chat.choices)
        async with AsyncExitStack() as held:
            episode = self._episode(tenant, request)
            self._hold(held, episode, request.chat.choices)
            # A call without both is alone: without a name of its own, all such would be of one side.
            drawn_by = episode.known.user or episode.known.episode_id or str(self._draw.random())
            policy = await held.enter_async_context(self.aliases.chosen_for(drawn_by))
            chat, characters = request.chat, _characters(request.chat)
            is_long = characters > LONG_TEXT
            if is_long and characters > policy.context_length * policy.chat.longest_token:
                raise _too_long(f"{characters} characters", policy)
            with tokenizing():
                if chat.tools and not await self._made(is_long, partial(policy.chat.can_offer, chat.tools)):
                    raise tools_refused()
            shown: Sequence[Message] = chat.messages
            notes = known_notes(episode, episode.sequences_with(policy), request)
            if notes is None and self.notes is not None:
                user = episode.known.user
                shown, notes = await self.notes.notes_for(chat.messages, episode.task_type, user)
            # Only now: an earlier call of the episode may have been answered meanwhile.
            sequences = episode.sequences_with(policy)
            with tokenizing():
                asked = chat.messages, shown, chat.tools
                tokenized = await self._made(is_long, partial(sequences.tokenized, *asked))
                choices = [sequences.place(*asked, tokenized) for _ in range(chat.choices)]
            placed = PlacedCall(
                call_id=f"chatcmpl-{secrets.token_hex(12)}",
                tenant=tenant,
                request=request,
                policy=policy,
                episode=episode,
                sequences=sequences,
                notes=notes or NO_NOTES,
                choices=choices,
                arrived=arrived,
                began=began,
                held=held.pop_all(),
            )
        if placed.room < 1:
            await placed.give_up()
            raise _too_long(f"{placed.prompt_tokens} tokens", policy)
        return placed

    async def answer(self, placed: PlacedCall) -> ChatCompletion:
        """Answer a call, and log it. Raises `RequestRefused` where the policy cannot be asked, or the log
        cannot be written."""
        async with placed.held:
            asked = self._asked(placed)
            generations = await _sampled(placed, asked)
            seconds = time.monotonic() - placed.began
            choices, turns = [], []
            for number, generation in enumerate(generations):
                call, request = placed.choices[number], placed.request
                seed = asked[number].seed
                answer = placed.sequences.answer(
                    call, generation, seed, request.chat.stop, one_call=request.chat.one_call
                )
                choices.append(Choice(answer, seconds))
                turn = served_turn(placed, number, asked[number], choices[-1], generation.logprobs, seconds)
                turns.append(turn)
                if request.is_stored:
                    self.episodes.record(placed.episode, call, answer, request, turn.turn_id, placed.notes)
            if placed.request.is_stored:
                self._traffic.register(placed.episode.known)
                await self._write(turns)
            return ChatCompletion(placed.call_id, placed.policy.change.alias, choices, placed.prompt_tokens)

    async def feedback(self, tenant: str, given: FeedbackRequest) -> str:
        """Log what somebody says about a call or an episode; returns its id. The same again is logged once,
        and is on disk as the first has to be.

        Raises what `feedback_record` raises.
        """
        feedback_id, record = feedback_record(self._settings, self._traffic, tenant, given)
        # One that is known may still wait for the disk, where it failed before.
        await self._write([] if record is None else [record])
        return feedback_id

    async def close_episode(self, tenant: str, episode_id: str) -> None:
        """Log that an episode is over. Raises `RequestRefused` for one that the tenant does not have."""
        known = known_episode(self._traffic, tenant, episode_id)
        ends: list[Record] = []
        if not known.is_over:
            self.episodes.close(known)
            ends.append(EpisodeEnd(episode_id=known.episode_id, tenant=tenant, received=datetime.now(UTC)))
        await self._write(ends)

    async def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Answer no more calls, and wait until those under way have ended, for at most `seconds`."""
        self.is_stopping = True
        try:
            async with asyncio.timeout(seconds):
                while self.under_way:
                    self._ended.clear()
                    await self._ended.wait()
        except TimeoutError:
            calls = "call is" if self.under_way == 1 else "calls are"
            _LOG.warning(
                "%d %s cut off: still under way %g s after the server was told to stop",
                self.under_way,
                calls,
                seconds,
            )

    async def _made(self, is_long: bool, make: Callable[[], _Made]) -> _Made:
        """What makes messages tokens; of long ones beside the event loop, one after the other, so that other
        calls go on."""
        if not is_long:
            return make()
        async with self._one_long:
            return await asyncio.to_thread(make)

    def _require_room(self, choices: int) -> None:
        if self.is_stopping:
            raise Unavailable("the server is stopping", "stopping", 503, 5.0)
        if self.log.failure:
            raise Unavailable(f"the log cannot be written: {self.log.failure}", "log_failed", 503, 5.0)
        most = self._settings.limits.in_flight
        if choices > most:
            raise RequestRefused(f"n: this server gives at most {most} answers to a call", "n")
        if self._choices_under_way + choices > most:
            what = f"limits.in_flight allows {most} answers, and {self._choices_under_way} are under way"
            raise Unavailable(what, "too_many_calls", 429)

    def _episode(self, tenant: str, request: ServedRequest) -> Episode:
        user = digest_of(self._user_key, tenant, request.user)
        if request.is_stored:
            return self.episodes.of_call(tenant, user, request)
        return Episode(KnownEpisode("", tenant, user), request.task_type)

    def _hold(self, held: AsyncExitStack, episode: Episode, choices: int) -> None:
        def end() -> None:
            self.under_way -= 1
            self._choices_under_way -= choices
            episode.under_way -= 1
            self._ended.set()

        self.under_way += 1
        self._choices_under_way += choices
        episode.under_way += 1
        held.callback(end)

    def _asked(self, placed: PlacedCall) -> list[GenerationRequest]:
        request = placed.request
        most = min(placed.room, self._settings.limits.max_tokens or self._sampling.max_new_tokens)
        temperature = self._sampling.temperature if request.temperature is None else request.temperature
        # A client that gives a seed gets the same answer again. Without one, no two calls are alike.
        seed = placed.call_id
        if request.seed is not None:
            seed = f"{request.seed} {digest(placed.choices[0].prompt_token_ids)}"
        conversation = placed.episode.known.episode_id or placed.call_id
        return [
            GenerationRequest(
                prompt_token_ids=choice.prompt_token_ids,
                max_new_tokens=min(most, request.chat.max_tokens or most),
                temperature=temperature,
                seed=derive_seed(seed, number),
                conversation=f"{conversation}/{choice.number}",
                model=placed.policy.change.alias,
            )
            for number, choice in enumerate(placed.choices)
        ]

    async def _write(self, records: Sequence[Record]) -> None:
        for record in records:
            self._traffic.add(record)
        try:
            await self.log.write(records)
        except StoreError as error:
            raise Unavailable(f"the log cannot be written: {error}", "log_failed", 503, 5.0) from error


_AROUND_MESSAGE = 16


def _characters(chat: ChatRequest) -> int:
    """Of what the policy may be shown of a call: an empty message too costs time."""
    said = sum(
        _AROUND_MESSAGE + len(each["content"]) + len(each.get("name", "")) + len(each.get("tool_call_id", ""))
        for each in chat.messages
    )
    called = [each["tool_calls"] for each in chat.messages if each.get("tool_calls")]
    shown = [*chat.tools, *called]
    return said + (len(json.dumps(shown, ensure_ascii=False)) if shown else 0)


def _too_long(size: str, policy: OpenedPolicy) -> RequestRefused:
    what = f"the conversation has {size}, and the policy's context holds {policy.context_length} tokens"
    return RequestRefused(what, "messages", "context_length_exceeded")


async def _sampled(placed: PlacedCall, asked: Sequence[GenerationRequest]) -> list[Generation]:
    found = await asyncio.gather(*map(placed.policy.sample, asked), return_exceptions=True)
    failure = next((each for each in found if isinstance(each, BaseException)), None)
    if failure is None:
        return [each for each in found if not isinstance(each, BaseException)]
    for choice in placed.choices:
        placed.sequences.give_up(choice)
    # Frameworks raise RuntimeError, such as where a device has no memory left.
    if isinstance(failure, EngineError | RuntimeError):
        raise Unavailable(f"the policy cannot be asked: {failure}", "engine_failed", 503) from failure
    raise failure
