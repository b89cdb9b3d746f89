"""One attempt of an agent: its calls are answered by the policy, within its limits."""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import NamedTuple

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.interface import AgentLimits
from erl_pipeline.environments.messages import Message, ToolSchema
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.gateway.api import (
    ChatCompletion,
    ChatRequest,
    Choice,
    RequestRefused,
    attempt_closed,
    tokenizing,
    tools_refused,
)
from erl_pipeline.episodes.gateway.equal_calls import EqualCalls, IsGone
from erl_pipeline.episodes.gateway.sequences import AttemptSequences, Call, RecordedTurn, SampledSequence
from storage.artifacts.recipe import derive_seed, digest
from storage.tables.agent_calls import AgentCall

Shown = Callable[[Sequence[Message], Sequence[ToolSchema]], Awaitable[Sequence[Message]]]
"""Gives the messages of a conversation that begins, with these tools, as the policy is to be shown them."""


@dataclass(frozen=True)
class AskedPolicy:
    """The policy, as the calls of one attempt ask it.

    `context_length` in tokens and `end_token_ids` are those of model and tokenizer. Requests have this
    `model`, `temperature` and at most `max_new_tokens`; their seeds derive from `seed`, and the names of
    their conversations begin with `conversation`. `ask` samples.
    """

    chat: ChatTokenizer
    context_length: int
    end_token_ids: frozenset[int]
    model: str
    temperature: float
    max_new_tokens: int
    seed: int
    conversation: str
    ask: Callable[[GenerationRequest], Awaitable[Generation]]


class _Sampling(NamedTuple):
    """One choice that is sampled: what gives it and the seconds that it took, and where it belongs."""

    generation: Awaitable[tuple[Generation, float]]
    call: Call
    seed: int


@dataclass(frozen=True)
class RecordedCall:
    """What is known of a call, but for its attempt and the number of its `sequence` there."""

    sequence: SampledSequence | None
    call: AgentCall


class AgentSession:
    """The calls of one attempt. All methods run in one event loop.

    `failed` is set where the policy could not be asked, which ends the run's stage as in any other episode;
    the agent is not told.
    """

    def __init__(self, policy: AskedPolicy, limits: AgentLimits, shown: Shown) -> None:
        self._policy = policy
        self._limits = limits
        self._shown = shown
        self._sequences = AttemptSequences(policy.chat, policy.end_token_ids)
        self._answers: dict[bytes, EqualCalls[ChatCompletion]] = {}
        """By the digest of a body."""
        self._under_way = set[asyncio.Task[ChatCompletion]]()
        self._closed = False
        self._sampled_tokens = 0
        self._not_sampled = 0
        self._began = perf_counter()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls = 0
        self.overridden = 0
        """Calls with values of sampling that do not count."""
        self.refused = 0
        """Calls that could not be answered."""
        self.recorded: list[RecordedCall] = []
        """All that was sampled, and of other calls the first ones, as many as `limits` allows calls."""
        self.limit_reached = False

    @property
    def sequences(self) -> list[SampledSequence]:
        """What was sampled, in the order in which the first answers came."""
        return self._sequences.sequences

    async def complete(
        self, request: ChatRequest, body: bytes, api: str, *, is_repeat: bool, is_gone: IsGone
    ) -> ChatCompletion:
        """Answer a call.

        Args:
            is_repeat: the client says that it sends this body again, since an answer did not reach it; then
                it gets that answer; see `EqualCalls`.

        Raises `RequestRefused` for a call that is over a limit or has no room in the context.
        """
        key, arrived = hashlib.sha256(body).digest(), perf_counter()
        calls = self._answers.setdefault(key, EqualCalls())
        before = calls.sent_before() if is_repeat else None
        # A task of its own: the client may go away and ask for the same answer again.
        task = before or asyncio.create_task(self._complete(request, api))
        calls.await_answer(task, is_gone)
        if before is None:
            calls.begin(task)
            self._under_way.add(task)
            task.add_done_callback(partial(self._ended, key))
        completion = await asyncio.shield(task)
        calls.answered(task, is_gone)
        if before is not None:
            self._record(api, arrived, request=request, retry_of=completion.call_id)
        return completion

    def refuse(self, api: str, refused: RequestRefused) -> None:
        """Note that a call could not be answered."""
        self.refused += 1
        self._record(api, perf_counter(), problem=str(refused))

    async def close(self) -> None:
        """Cancel the calls that are under way, which are not recorded; later ones are refused."""
        self._closed = True
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _ended(self, key: bytes, task: asyncio.Task[ChatCompletion]) -> None:
        self._under_way.discard(task)
        # A refusal holds the whole request; sent again it is refused again.
        if task.cancelled() or task.exception() is not None:
            calls = self._answers.get(key)
            if calls is not None:  # Many equal calls are not all kept.
                calls.forget(task)
                if not calls.calls:
                    del self._answers[key]

    async def _complete(self, request: ChatRequest, api: str) -> ChatCompletion:
        arrived = perf_counter()
        if self._closed:  # Its body came after the end of the attempt.
            raise attempt_closed()
        shown = await self._shown(request.messages, request.tools)
        self._require_allowed()
        number = self.calls
        self.calls += 1
        self.overridden += bool(request.overridden)
        with tokenizing():
            if request.tools and not self._policy.chat.can_offer(request.tools):
                raise tools_refused()
            choices = [self._sample(request, shown) for _ in range(request.choices)]
        try:
            sampled = await asyncio.gather(*(each.generation for each in choices))
        except BaseException:
            for each in choices:
                self._sequences.give_up(each.call)
            raise
        call_id = f"call-{digest([self._policy.conversation, number])[:24]}"
        answered = []
        # Only now that all are there: what an attempt trains is in the records of its calls.
        for index, (each, (generation, seconds)) in enumerate(zip(choices, sampled, strict=True)):
            answer = self._sequences.answer(
                each.call, generation, each.seed, request.stop, one_call=request.one_call
            )
            choice, turn = Choice(answer, seconds), each.call.answered
            answered.append(choice)
            self._record(
                api, arrived, request=request, call_id=call_id, number=index, choice=choice, turn=turn
            )
        return ChatCompletion(
            call_id=call_id,
            model=self._policy.model,
            choices=answered,
            prompt_tokens=len(choices[0].call.prompt_token_ids),
            one_call=request.one_call,
        )

    def _record(
        self,
        api: str,
        arrived: float,
        *,
        request: ChatRequest | None = None,
        call_id: str | None = None,
        number: int = 0,
        choice: Choice | None = None,
        turn: RecordedTurn | None = None,
        retry_of: str | None = None,
        problem: str | None = None,
    ) -> None:
        """Note a call. `arrived` is on the clock of `perf_counter`; `request` is None where it could not be
        read, `choice` and `turn` where nothing was sampled for it."""
        if choice is None:
            self._not_sampled += 1
            if self._not_sampled > self._limits.calls:
                return  # An agent may go on asking for as long as it has time.
        answer = None if choice is None else choice.answer
        ill_formed = (
            [] if answer is None else [each.problem for each in answer.turn.tool_calls if each.problem]
        )
        engine = 0.0 if choice is None else choice.engine_seconds
        call = AgentCall(
            attempt_id="",
            call_id=call_id or retry_of,
            choice=number,
            api=api,
            sequence_index=None,
            start=None if turn is None else turn.start,
            end=None if turn is None or answer is None else turn.start + answer.tokens,
            finish=None if choice is None else choice.finish_reason,
            streamed=request is not None and request.stream,
            retry_of=retry_of,
            overridden=() if request is None else request.overridden,
            problem=problem or "; ".join(ill_formed) or None,
            arrived_ms=1000 * (arrived - self._began),
            engine_ms=1000 * engine,
            gateway_ms=1000 * (perf_counter() - arrived - engine),
        )
        self.recorded.append(RecordedCall(None if turn is None else turn.sequence, call))

    def _require_allowed(self) -> None:
        limits = self._limits
        if self.calls < limits.calls and self._sampled_tokens < limits.tokens:
            return
        self.limit_reached = True
        what = f"{limits.calls} calls" if self.calls >= limits.calls else f"{limits.tokens} tokens of answers"
        raise RequestRefused(f"this attempt may have at most {what}", code="attempt_limit", status=403)

    def _sample(self, request: ChatRequest, shown: Sequence[Message]) -> _Sampling:
        """One choice. Its place is taken at once, so that the choices of a call, and calls at the same time,
        each get one of their own."""
        policy = self._policy
        call = self._sequences.place(request.messages, shown, request.tools)
        room = policy.context_length - len(call.prompt_token_ids)
        if room < 1:
            self._sequences.give_up(call)
            raise RequestRefused(
                f"the conversation has {len(call.prompt_token_ids)} tokens, and the policy's context holds "
                f"{policy.context_length}",
                "messages",
                "context_length_exceeded",
            )
        most = min(policy.max_new_tokens, room, self._limits.tokens - self._sampled_tokens)
        # By content, never by arrival: calls at the same time come in any order.
        seed = derive_seed(policy.seed, _token_digest(call.prompt_token_ids), call.repeat)
        asked = GenerationRequest(
            prompt_token_ids=call.prompt_token_ids,
            max_new_tokens=most if request.max_tokens is None else min(most, request.max_tokens),
            temperature=policy.temperature,
            seed=seed,
            conversation=f"{policy.conversation}/{call.number}",
            model=policy.model,
        )

        async def sample() -> tuple[Generation, float]:
            began = perf_counter()
            try:
                generation = await policy.ask(asked)
            except Exception as error:
                # The stage must end with it, whatever the agent makes of its call's end.
                if not self.failed.done():
                    self.failed.set_exception(error)
                raise RequestRefused("the policy cannot be asked any more", status=403) from error
            self._sampled_tokens += len(generation.token_ids)
            return generation, perf_counter() - began

        return _Sampling(sample(), call, seed)


def _token_digest(token_ids: Sequence[int]) -> str:
    """Of the ids as numbers of 64 bits: as JSON, those of a long conversation would take milliseconds in
    which all other calls wait."""
    return hashlib.sha256(array("q", token_ids)).hexdigest()
