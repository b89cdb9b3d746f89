"""The address that agents talk to: one HTTP server for all attempts of a stage, each with its own key."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from erl_pipeline.environments.interface import AgentEndpoint
from erl_pipeline.episodes.gateway.chat_api import ChatCompletion, RequestRefused, read_request
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
        self.late_calls = 0
        """Calls with a key that is not known, such as those after the end of their attempt."""

    async def __aenter__(self) -> Gateway:
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_post("/v1/chat/completions", self._complete)
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

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        session = None
        try:
            session = self._session(request)
            body = await request.read()
            asked = read_request(body)
            again = request.headers.get("x-stainless-retry-count", "0") != "0"
            answer = asyncio.create_task(session.complete(asked, body, is_repeat=again))
            headers = {"x-erl-overridden": ",".join(asked.overridden)} if asked.overridden else {}
            if asked.stream:
                return await _stream(request, answer, headers, asked.with_usage)
            completion = await answer
            return web.json_response(
                completion.body, headers={"x-erl-call-id": completion.call_id, **headers}
            )
        except RequestRefused as refused:
            if session is not None:
                session.refused += 1
            return _refusal(refused)
        except web.HTTPRequestEntityTooLarge:
            return _refusal(RequestRefused(f"a body may have at most {_LARGEST_BODY} bytes"))

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._session(request)
        except RequestRefused as refused:
            return _refusal(refused)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "erl-pipeline"}
        return web.json_response({"object": "list", "data": [model]})

    def _session(self, request: web.Request) -> AgentSession:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        session = self._sessions.get(key.strip()) if scheme.lower() == "bearer" else None
        if session is None:
            self.late_calls += 1
            raise RequestRefused(
                "this key is not that of an attempt under way: the attempt has ended, or the agent does not "
                "send OPENAI_API_KEY",
                code="attempt_closed",
                status=403,
            )
        return session


async def _stream(
    request: web.Request, answer: asyncio.Task[ChatCompletion], headers: dict[str, str], with_usage: bool
) -> web.StreamResponse:
    """The answer as server-sent events; a refusal that comes before the first of them is an ordinary one."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **headers}
    )
    while not (await asyncio.wait({answer}, timeout=_STREAM_SIGN_SECONDS))[0]:
        if not response.prepared:
            await response.prepare(request)
        await response.write(b": waiting\n\n")
    try:
        chunks = [json.dumps(chunk) for chunk in answer.result().chunks(with_usage)]
    except RequestRefused as refused:
        if not response.prepared:
            raise
        chunks = [json.dumps(refused.body)]
    if not response.prepared:
        await response.prepare(request)
    for chunk in (*chunks, "[DONE]"):
        await response.write(f"data: {chunk}\n\n".encode())
    await response.write_eof()
    return response


def _refusal(refused: RequestRefused) -> web.Response:
    return web.json_response(refused.body, status=refused.status, headers={"x-should-retry": "false"})
