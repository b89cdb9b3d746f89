"""The address that agents talk to: one HTTP server for all attempts of a stage, each with its own key."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from erl_pipeline.environments.interface import AgentEndpoint
from erl_pipeline.episodes.gateway.anthropic_api import ANTHROPIC
from erl_pipeline.episodes.gateway.api import Api, ChatCompletion, ChatRequest, RequestRefused, attempt_closed
from erl_pipeline.episodes.gateway.chat_api import CHAT
from erl_pipeline.episodes.gateway.equal_calls import whether_gone
from erl_pipeline.episodes.gateway.responses_api import RESPONSES
from erl_pipeline.episodes.gateway.session import AgentSession

_LARGEST_BODY = 64 * 2**20
_KEEP_ALIVE_SECONDS = 75.0
_STREAM_SIGN_SECONDS = 10.0
"""How often a client that waits for a stream is told that its call is alive."""


class Gateway:
    """Serves attempts on loopback, in the event loop that it is entered in.

    A key is made for each attempt, is never used again, and is dead when the attempt has ended.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, AgentSession] = {}

    async def __aenter__(self) -> Gateway:
        app = web.Application(client_max_size=_LARGEST_BODY)
        for api in (CHAT, RESPONSES, ANTHROPIC):
            app.router.add_post(api.path, partial(self._complete, api))
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=_KEEP_ALIVE_SECONDS, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    @asynccontextmanager
    async def serving(self, session: AgentSession, seed: int, seconds: float) -> AsyncIterator[AgentEndpoint]:
        """Answer the calls of an attempt; when it is left, calls under way are cancelled."""
        key = secrets.token_urlsafe(32)
        self._sessions[key] = session
        try:
            yield AgentEndpoint(f"http://127.0.0.1:{self._port}/v1", key, "policy", seed, seconds)
        finally:
            del self._sessions[key]
            await session.close()

    async def _complete(self, api: Api, request: web.Request) -> web.StreamResponse:
        session = None
        try:
            session = self._session(request)
            body = await request.read()
            asked = api.read(body)
            again = request.headers.get("x-stainless-retry-count", "0") != "0"
            completion = asyncio.create_task(
                session.complete(asked, body, api.name, is_repeat=again, is_gone=whether_gone(request))
            )
            headers = {"x-erl-overridden": ",".join(asked.overridden)} if asked.overridden else {}
            if asked.stream:
                return await stream_answer(api, request, asked, completion, headers)
            found = await completion
            return web.json_response(api.answer(found), headers={"x-erl-call-id": found.call_id, **headers})
        except RequestRefused as refused:
            # What comes after the end of an attempt is no call of it.
            if session is not None and refused.code != "attempt_closed":
                session.refuse(api.name, refused)
            return _refusal(api, refused)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(api, RequestRefused(f"a body may have at most {_LARGEST_BODY} bytes"))

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._session(request)
        except RequestRefused as refused:
            return _refusal(CHAT, refused)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "erl-pipeline"}
        return web.json_response({"object": "list", "data": [model]})

    def _session(self, request: web.Request) -> AgentSession:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = request.headers.get("x-api-key", "")
        session = self._sessions.get(key.strip())
        if session is None:
            raise attempt_closed()
        return session


async def stream_answer(
    api: Api,
    request: web.Request,
    asked: ChatRequest,
    completion: asyncio.Task[ChatCompletion],
    headers: Mapping[str, str],
) -> web.StreamResponse:
    """The answer as server-sent events, once it is whole; until then the client gets signs of life.

    Raises `RequestRefused` for a refusal that comes before the first of them.
    """
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **headers}
    )
    while not (await asyncio.wait({completion}, timeout=_STREAM_SIGN_SECONDS))[0]:
        if not response.prepared:
            await response.prepare(request)
        await response.write(b": waiting\n\n")
    try:
        events = b"".join(api.stream(asked, completion.result()))
    except RequestRefused as refused:
        if not response.prepared:
            raise
        events = b"".join(api.refused_stream(refused))
    if not response.prepared:
        await response.prepare(request)
    await response.write(events)
    await response.write_eof()
    return response


def _refusal(api: Api, refused: RequestRefused) -> web.Response:
    return web.json_response(api.refusal(refused), status=refused.status, headers={"x-should-retry": "false"})
