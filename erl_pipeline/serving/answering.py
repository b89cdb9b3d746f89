"""Answering calls: each by the checkpoint of an alias, token by token in its episode, and into the log."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from erl_pipeline.config.rollouts import SamplingConfig
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.gateway.chat_api import ChatCompletion, Choice, RequestRefused
from erl_pipeline.episodes.gateway.sequences import AttemptSequences, Call
from erl_pipeline.serving.aliases import ServedAliases
from erl_pipeline.serving.episodes import Episode, OpenEpisodes, known_notes
from erl_pipeline.serving.known import KnownEpisode, KnownTraffic
from erl_pipeline.serving.notes import NO_NOTES, Notes, NoteSearch
from erl_pipeline.serving.policies import OpenedPolicy
from erl_pipeline.serving.requests import FeedbackRequest, ServedRequest, Unavailable
from erl_pipeline.serving.settings import TEXTS, ServingSettings
from erl_pipeline.serving.writing import LogWriter
from storage.artifacts.recipe import derive_seed, digest
from storage.errors import EngineError, StoreError
from storage.serving.traffic import EpisodeEnd, Feedback, Record, ServedTurn
from storage.serving.users import digest_of


@dataclass
class PlacedCall:
    """A call that is about to be answered. `choices` are its places in the sequences of its episode."""

    call_id: str
    tenant: str
    request: ServedRequest
    policy: OpenedPolicy
    episode: Episode
    sequences: AttemptSequences
    notes: Notes
    choices: Sequence[Call]
    asked: Sequence[GenerationRequest]
    arrived: datetime
    began: float
    held: AsyncExitStack
    """What is released when the call has ended."""

    @property
    def headers(self) -> dict[str, str]:
        """What the client is told beside the answer. A call that is not stored belongs to no episode."""
        told = {"x-erl-call-id": self.call_id, "x-erl-checkpoint": self.policy.checkpoint_id}
        if self.request.is_stored:
            told["x-erl-episode-id"] = self.episode.known.episode_id
        return told


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
        self.is_stopping = False
        self._ended = asyncio.Event()

    async def place(self, tenant: str, request: ServedRequest) -> PlacedCall:
        """Find out what a call is sampled after, with which checkpoint. It has to be given to `answer`.

        Raises `RequestRefused` for one that cannot be answered.
        """
        arrived, began = datetime.now(UTC), time.monotonic()
        self._require_room()
        async with AsyncExitStack() as held:
            self._hold(held)
            user = digest_of(self._user_key, request.user)
            episode = self._episode(tenant, user, request)
            episode.under_way += 1
            held.callback(_left, episode)
            drawn_by = user or episode.known.episode_id
            policy = await held.enter_async_context(self.aliases.chosen_for(drawn_by))
            chat = request.chat
            if chat.tools and not policy.chat.shows(chat.tools):
                raise RequestRefused("tools: the policy's chat template does not show tools", "tools")
            sequences = episode.sequences_with(policy)
            shown: Sequence[Message] = chat.messages
            notes = known_notes(episode, sequences, request)
            if notes is None:
                notes = NO_NOTES
                if self.notes is not None:
                    shown, notes = await self.notes.notes_for(
                        chat.messages, episode.task_type, episode.known.user
                    )
                # A change of the alias, or the first answer, may have come meanwhile.
                sequences = episode.sequences_with(policy)
            call_id = f"chatcmpl-{secrets.token_hex(12)}"
            choices = [sequences.place(chat.messages, shown, chat.tools) for _ in range(chat.choices)]
            asked = self._asked(call_id, request, policy, episode, sequences, choices)
            return PlacedCall(
                call_id,
                tenant,
                request,
                policy,
                episode,
                sequences,
                notes,
                choices,
                asked,
                arrived,
                began,
                held.pop_all(),
            )

    async def answer(self, placed: PlacedCall) -> ChatCompletion:
        """Answer a call, and log it. Raises `RequestRefused` where the policy cannot be asked, or the log
        cannot be written."""
        async with placed.held:
            generations = await self._sampled(placed)
            seconds = time.monotonic() - placed.began
            completion, turns = self._recorded(placed, generations, seconds)
            if placed.request.is_stored:
                self._traffic.register(placed.episode.known)
                await self._write(turns)
            return completion

    async def feedback(self, tenant: str, given: FeedbackRequest) -> str:
        """Log what somebody says about a call or an episode; returns its id. The same again is logged once.

        Raises `RequestRefused` for an id that the tenant does not have, and an undeclared metric or value.
        """
        episode = self._meant(tenant, given)
        reward = self._reward(given)
        feedback_id, is_known = self._traffic.feedback_id(tenant, given.idempotency_key)
        if not is_known:
            record = Feedback(
                feedback_id=feedback_id,
                episode_id=episode.episode_id,
                call_id=given.call_id,
                tenant=tenant,
                user=episode.user,
                metric=given.metric,
                value=given.value,
                reward=reward,
                source=given.source,
                received=datetime.now(UTC),
            )
            await self._write([record])
        return feedback_id

    async def close_episode(self, tenant: str, episode_id: str) -> None:
        """Log that an episode is over. Raises `RequestRefused` for one that the tenant does not have."""
        known = self._traffic.episode(tenant, episode_id)
        if known is None:
            raise RequestRefused(f"there is no episode {episode_id}", "episode_id", "not_found", 404)
        if not known.is_over:
            self.episodes.close(known)
            await self._write([EpisodeEnd(episode_id=episode_id, tenant=tenant, received=datetime.now(UTC))])

    async def stop(self) -> None:
        """Answer no more calls, and wait until those under way have ended."""
        self.is_stopping = True
        while self.under_way:
            self._ended.clear()
            await self._ended.wait()

    def _require_room(self) -> None:
        if self.is_stopping:
            raise Unavailable("the server is stopping", "stopping", 503, 5.0)
        if self.log.failure:
            raise Unavailable(f"the log cannot be written: {self.log.failure}", "log_failed", 503, 5.0)
        if self.under_way >= self._settings.limits.in_flight:
            what = f"{self.under_way} calls are under way, as many as limits.in_flight allows"
            raise Unavailable(what, "too_many_calls", 429)

    def _hold(self, held: AsyncExitStack) -> None:
        def end() -> None:
            self.under_way -= 1
            self._ended.set()

        self.under_way += 1
        held.callback(end)

    def _episode(self, tenant: str, user: str, request: ServedRequest) -> Episode:
        if request.is_stored:
            return self.episodes.of_call(tenant, user, request)
        return Episode(KnownEpisode("", tenant, user), request.task_type)

    def _asked(
        self,
        call_id: str,
        request: ServedRequest,
        policy: OpenedPolicy,
        episode: Episode,
        sequences: AttemptSequences,
        choices: Sequence[Call],
    ) -> list[GenerationRequest]:
        prompt = choices[0].prompt_token_ids
        room = policy.context_length - len(prompt)
        if room < 1:
            for choice in choices:
                sequences.give_up(choice)
            raise RequestRefused(
                f"the conversation has {len(prompt)} tokens, and the policy's context holds "
                f"{policy.context_length}",
                "messages",
                "context_length_exceeded",
            )
        most = min(room, self._settings.limits.max_tokens or self._sampling.max_new_tokens)
        temperature = self._sampling.temperature if request.temperature is None else request.temperature
        # A client that gives a seed gets the same answer again. Without one, no two calls are alike.
        seed = call_id if request.seed is None else f"{request.seed} {digest(prompt)}"
        conversation = episode.known.episode_id or call_id
        return [
            GenerationRequest(
                prompt_token_ids=choice.prompt_token_ids,
                max_new_tokens=min(most, request.chat.max_tokens or most),
                temperature=temperature,
                seed=derive_seed(seed, number),
                conversation=f"{conversation}/{choice.number}",
                model=policy.change.alias,
            )
            for number, choice in enumerate(choices)
        ]

    async def _sampled(self, placed: PlacedCall) -> list[Generation]:
        found = await asyncio.gather(*map(placed.policy.sample, placed.asked), return_exceptions=True)
        failures = [each for each in found if isinstance(each, BaseException)]
        if failures:
            for choice in placed.choices:
                placed.sequences.give_up(choice)
            # Frameworks raise RuntimeError, such as where a device has no memory left.
            if isinstance(failures[0], EngineError | RuntimeError):
                what = f"the policy cannot be asked: {failures[0]}"
                raise Unavailable(what, "engine_failed", 503) from failures[0]
            raise failures[0]
        return [each for each in found if not isinstance(each, BaseException)]

    def _recorded(
        self, placed: PlacedCall, generations: Sequence[Generation], seconds: float
    ) -> tuple[ChatCompletion, list[ServedTurn]]:
        request, sequences, episode = placed.request, placed.sequences, placed.episode
        turns, chosen = [], []
        for number, (call, asked, generation) in enumerate(
            zip(placed.choices, placed.asked, generations, strict=True)
        ):
            answer = sequences.answer(call, generation, asked.seed, request.chat.stop)
            assert call.answered is not None
            sampled = call.answered.token_ids[len(call.prompt_token_ids) :]
            before = call.after
            after = None if before is None else episode.turn_ids.get(before)
            turn_id = f"{placed.call_id}-{number}"
            chosen.append(Choice(answer))
            turns.append(
                ServedTurn(
                    turn_id=turn_id,
                    call_id=placed.call_id,
                    episode_id=episode.known.episode_id,
                    tenant=placed.tenant,
                    user=episode.known.user,
                    task_type=episode.task_type,
                    alias=placed.policy.change.alias,
                    policy_version=placed.policy.checkpoint_id,
                    tokenizer_digest=placed.policy.tokenizer_digest,
                    temperature=asked.temperature,
                    after=after,
                    context_token_ids=call.prompt_token_ids[
                        0 if before is None or after is None else len(before.token_ids) :
                    ],
                    sampled_token_ids=sampled,
                    logprobs=generation.logprobs[: len(sampled)],
                    seed=asked.seed,
                    finish_reason="length" if answer.cut_off else "stop",
                    not_trainable="" if asked.temperature > 0 else "temperature 0",
                    messages=tuple(_new_messages(placed, None if after is None else call)),
                    answer=chosen[-1].message,
                    notes=placed.notes.text,
                    memory_version=placed.notes.memory_version,
                    memory_entry_ids=placed.notes.entry_ids,
                    arrived=placed.arrived,
                    seconds=seconds,
                )
            )
            if request.is_stored:
                self.episodes.record(episode, call, answer, request, turn_id, placed.notes)
        completion = ChatCompletion(
            placed.call_id, placed.policy.change.alias, chosen, len(placed.choices[0].prompt_token_ids)
        )
        return completion, turns

    async def _write(self, records: Sequence[Record]) -> None:
        for record in records:
            self._traffic.add(record)
        try:
            await self.log.write(records)
        except StoreError as error:
            raise Unavailable(f"the log cannot be written: {error}", "log_failed", 503, 5.0) from error

    def _meant(self, tenant: str, given: FeedbackRequest) -> KnownEpisode:
        if (given.call_id is None) == (given.episode_id is None):
            raise RequestRefused("give either call_id or episode_id", "call_id")
        if given.call_id is not None:
            found = self._traffic.episode_of_call(tenant, given.call_id)
            what = f"call {given.call_id}"
        else:
            assert given.episode_id is not None
            found = self._traffic.episode(tenant, given.episode_id)
            what = f"episode {given.episode_id}"
        if found is None:
            raise RequestRefused(f"there is no {what}", None, "not_found", 404)
        return found

    def _reward(self, given: FeedbackRequest) -> float | None:
        if given.metric in TEXTS:
            if not isinstance(given.value, str):
                raise RequestRefused(f"value: a {given.metric} is a text", "value")
            if given.metric == "correction" and given.call_id is None:
                raise RequestRefused("call_id: name the call whose answer is corrected", "call_id")
            return None
        metric = self._settings.feedback.get(given.metric)
        if metric is None:
            declared = ", ".join([*self._settings.feedback, *TEXTS])
            raise RequestRefused(f"metric: {given.metric} is not declared; allowed: {declared}", "metric")
        try:
            return metric.reward(given.value)
        except ValueError as error:
            raise RequestRefused(f"value: {error}", "value") from error


def _left(episode: Episode) -> None:
    episode.under_way -= 1


def _new_messages(placed: PlacedCall, call: Call | None) -> Sequence[Mapping[str, Any]]:
    """What the client wrote after the messages of the turn that a call goes on with."""
    messages = placed.request.messages
    if call is None or call.after is None:
        return messages
    answers = sum(each["role"] == "assistant" for each in call.after.messages)
    places = [place for place, each in enumerate(messages, start=1) if each.get("role") == "assistant"]
    return messages[max(places[:answers], default=0) :]
