"""The address that clients talk to: OpenAI's routes for calls, and routes of our own for feedback."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

from aiohttp import web

from erl_pipeline.episodes.gateway.api import ChatCompletion, RequestRefused, event, validated
from erl_pipeline.episodes.gateway.chat_api import CHAT
from erl_pipeline.episodes.gateway.equal_calls import EqualCalls, IsGone, whether_gone
from erl_pipeline.episodes.gateway.server import stream_answer
from erl_pipeline.serving.answering import PolicyService
from erl_pipeline.serving.keys import Client, KeyRing
from erl_pipeline.serving.requests import FeedbackRequest, ServedRequest, Unavailable, read_call
from storage.errors import InputError

LARGEST_BODY = 16 * 2**20
"""Bytes of a request."""
_KEEP_ALIVE_SECONDS = 75.0
_REPEAT_SECONDS = 900.0
"""How long a call is kept for a client that asks again: OpenAI's library does so after ten minutes without an
answer, too."""
_MOST_REPEATS = 256
"""Most calls that are kept for that, beside those under way."""

_KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class _Begun:
    """A call that has its place, and is being answered, or was."""

    headers: Mapping[str, str]
    answering: asyncio.Task[ChatCompletion]


@dataclass
class _Known:
    """The calls with a body. `refusals`: how many of them were refused and have not come again yet."""

    since: float
    calls: EqualCalls[_Begun] = field(default_factory=EqualCalls)
    refusals: int = 0

    @property
    def is_under_way(self) -> bool:
        return any(map(_is_under_way, self.calls.calls))


def _is_under_way(call: asyncio.Task[_Begun]) -> bool:
    if not call.done():
        return True
    has_failed = call.cancelled() or call.exception() is not None
    return not has_failed and not call.result().answering.done()


class _Repeats:
    """Calls of clients whose library asks again where an answer did not reach it: they get that answer."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, bytes], _Known] = OrderedDict()

    async def call(
        self,
        tenant: str,
        body: bytes,
        retries: str | None,
        begin: Callable[[], Coroutine[Any, Any, _Begun]],
        is_gone: IsGone,
    ) -> _Begun:
        """The call with this body. `retries` is how often the client says that it has sent it before; None
        for a client that does not say, whose calls are not kept."""
        if retries is None:
            return await begin()
        known, task = self._of(tenant, body), None
        if retries != "0" and known.refusals:
            # It was refused itself: the answer that is known belongs to another call with the same body.
            known.refusals -= 1
        elif retries != "0":
            task = known.calls.sent_before()
        if task is None:
            task = asyncio.create_task(begin())
            known.calls.begin(task)
            task.add_done_callback(partial(_forget_failed, known, task))
        known.calls.await_answer(task, is_gone)
        begun, call = await asyncio.shield(task), task
        begun.answering.add_done_callback(lambda _: known.calls.answered(call, is_gone))
        return begun

    def knows(self, tenant: str, body: bytes, retries: str | None) -> bool:
        """Whether it is a call that comes again, and that is being answered, or was: nothing is sampled for
        it."""
        self._forget_old()
        known = self._known.get(_key(tenant, body))
        is_repeat = retries not in (None, "0")
        return (
            is_repeat and known is not None and known.calls.sent_before() is not None and not known.refusals
        )

    def refused(self, tenant: str, body: bytes) -> None:
        """Note that a call was asked to come again later."""
        self._of(tenant, body).refusals += 1

    def _of(self, tenant: str, body: bytes) -> _Known:
        self._forget_old()
        key, now = _key(tenant, body), time.monotonic()
        known = self._known.setdefault(key, _Known(now))
        known.since = now
        self._known.move_to_end(key)
        if (surplus := len(self._known) - _MOST_REPEATS) > 0:
            # Of those under way there are no more than `limits.in_flight`.
            over = (each for each, kept in self._known.items() if kept is not known and not kept.is_under_way)
            for each in list(islice(over, surplus)):
                del self._known[each]
        return known

    def _forget_old(self) -> None:
        since = time.monotonic() - _REPEAT_SECONDS
        old = takewhile(lambda each: each[1].since < since, self._known.items())
        for key in [key for key, known in old if not known.is_under_way]:
            del self._known[key]


def _key(tenant: str, body: bytes) -> tuple[str, bytes]:
    return tenant, hashlib.sha256(body).digest()


def _forget_failed(known: _Known, call: asyncio.Task[_Begun], ended: asyncio.Task[Any]) -> None:
    """Forget a call of which a part, `ended`, has failed: it is answered when it comes again. Its error holds
    the whole request."""
    if ended.cancelled() or ended.exception() is not None:
        known.calls.forget(call)
    elif ended is call:
        call.result().answering.add_done_callback(partial(_forget_failed, known, call))


class PolicyServer:
    """Serves `service` to the clients in `keys`, in the event loop that it is entered in."""

    def __init__(self, service: PolicyService, keys: KeyRing, run: str) -> None:
        self._service = service
        self._keys = keys
        self._run = run
        self._answering: set[asyncio.Task[ChatCompletion]] = set()
        self._repeats = _Repeats()

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[str]:
        """Listen on an address, port 0 for a free one; gives the URL. Raises InputError where that fails."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_errors_as_json])
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/erl/v1/feedback", self._feedback)
        app.router.add_post("/erl/v1/episodes/{id:[^/]+}/close", self._close)
        app.router.add_get("/erl/v1/health", self._health)
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=5.0,
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise InputError(f"cannot listen on {host}:{port}: {error.strerror}") from error
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        client = self._client(request)
        wait = client.seconds_to_wait()
        body = await request.read()
        retries = request.headers.get("x-stainless-retry-count")
        if wait and not self._repeats.knows(client.tenant, body, retries):
            # One that was refused before is noted already, and stays so.
            if retries == "0":
                self._repeats.refused(client.tenant, body)
            raise Unavailable("more calls a minute than this key may make", "rate_limited", 429, wait)
        try:
            asked = read_call(body)
            begin = partial(self._begin, client.tenant, asked)
            begun = await self._repeats.call(client.tenant, body, retries, begin, whether_gone(request))
            if asked.chat.stream:
                return await stream_answer(_CHAT, request, asked.chat, begun.answering, begun.headers)
            completion = await asyncio.shield(begun.answering)
        except Unavailable as refused:
            # Once, where a client that waits no more and its next try are both refused.
            if retries is not None and not refused.is_noted:
                refused.is_noted = True
                self._repeats.refused(client.tenant, body)
            raise
        return web.json_response(_CHAT.answer(completion), headers=begun.headers)

    async def _begin(self, tenant: str, asked: ServedRequest) -> _Begun:
        placed = await self._service.place(tenant, asked)
        # A task of its own: what was sampled is logged, also where the client goes away.
        answering = asyncio.create_task(self._service.answer(placed))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)
        return _Begun(placed.headers, answering)

    async def _models(self, request: web.Request) -> web.Response:
        self._client(request)
        models = [
            {
                "id": policy.change.alias,
                "object": "model",
                "created": int(policy.change.changed.timestamp()),
                "owned_by": "erl-pipeline",
            }
            for policy in self._service.aliases.policies
        ]
        return web.json_response({"object": "list", "data": models})

    async def _feedback(self, request: web.Request) -> web.Response:
        client = self._client(request)
        given = validated(FeedbackRequest, await request.read())
        return web.json_response({"feedback_id": await self._service.feedback(client.tenant, given)})

    async def _close(self, request: web.Request) -> web.Response:
        client, episode_id = self._client(request), request.match_info["id"]
        await self._service.close_episode(client.tenant, episode_id)
        return web.json_response({"episode_id": episode_id, "closed": True})

    async def _health(self, request: web.Request) -> web.Response:
        """Needs no key, and says nothing about anybody's calls."""
        service = self._service
        failures = service.aliases.failures
        aliases = {
            policy.change.alias: {
                "checkpoint": policy.checkpoint_id,
                "run": policy.change.run,
                "failure": failures.get(policy.change.alias, ""),
            }
            for policy in service.aliases.policies
        }
        for alias, failure in failures.items():
            aliases.setdefault(alias, {"checkpoint": "", "run": "", "failure": failure})
        log = service.log
        status = "log_failed" if log.failure else "stopping" if service.is_stopping else "ok"
        return web.json_response(
            {
                "status": status,
                "run": self._run,
                "aliases": aliases,
                "calls_under_way": service.under_way,
                "episodes_open": len(service.episodes),
                "log": {
                    "waiting": log.waiting,
                    "lag_ms": round(1000 * log.lag_seconds),
                    "failure": log.failure,
                },
                "answered_without_notes": 0 if service.notes is None else service.notes.unanswered,
            }
        )

    def _client(self, request: web.Request) -> Client:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise RequestRefused(
                "there is no key: send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                status=401,
            )
        client = self._keys.client(key.strip())
        if client is None:
            raise RequestRefused("this key is not known here", code="invalid_api_key", status=401)
        return client


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """What cannot be answered, in the form that clients of OpenAI read."""
    try:
        return await handler(request)
    except RequestRefused as refused:
        return _refusal(refused)
    except web.RequestPayloadError as error:
        return _refusal(RequestRefused(f"the body cannot be read: {error}"))
    except web.HTTPException as error:
        what = f"a body may have at most {LARGEST_BODY} bytes" if error.status == 413 else error.reason
        return _refusal(RequestRefused(what, status=error.status))


def _refusal(refused: RequestRefused) -> web.Response:
    headers = {"x-should-retry": "false"}
    if isinstance(refused, Unavailable):
        headers = {"Retry-After": str(max(1, math.ceil(refused.seconds)))}
    return web.json_response(_error(refused), status=refused.status, headers=headers)


def _error(refused: RequestRefused) -> dict[str, Any]:
    kind = _KINDS.get(refused.status, "invalid_request_error" if refused.status < 500 else "server_error")
    return {"error": {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}}


_CHAT = replace(CHAT, refusal=_error, refused_stream=lambda refused: iter([event(_error(refused))]))
"""Chat completions, with errors that clients of a service may meet besides those of an attempt."""
