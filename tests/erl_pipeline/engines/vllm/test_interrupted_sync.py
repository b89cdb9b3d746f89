"""A hand-over that is cut off, with a server that says of a text what its weights say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from aiohttp import web

from erl_pipeline.engines.interface import Probe
from erl_pipeline.engines.vllm.client import VllmClient
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, sync_weights

LOGPROB = {"A": -2.0, "B": -1.95}
"""A small update lies between both: 0.05 nats, where bfloat16 may differ by 0.2 on average."""


class Server:
    """A server of somebody else. While `hangs` is set, it does not answer once it has read the weights."""

    def __init__(self) -> None:
        self.weights, self.label, self.hangs = "A", "default", False
        self.hung = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else {}
        answer: dict[str, object] = {}
        match request.path:
            case "/is_sleeping":
                answer = {"is_sleeping": False}
            case "/weight_info":
                answer = {"weight_version": self.label}
            case "/update_weight_version":
                self.label = body["new_version"]
            case "/collective_rpc":
                self.weights = body["kwargs"]["weights_path"]
            case "/reset_prefix_cache":
                # Without it vLLM forgets only what is on the GPU.
                assert request.query["reset_external"] == "true"
                if self.hangs:
                    self.hung.set()
                    await asyncio.Event().wait()
                answer = {"success": True}
            case "/inference/v1/generate":
                said = [{str(token): {"logprob": LOGPROB[self.weights]}} for token in body["token_ids"][1:]]
                drawn = {"token_ids": [5], "logprobs": {"content": [{"logprob": -2.0}]}}
                answer = {"choices": [drawn], "prompt_logprobs": [None, *said]}
        return web.json_response(answer)


def policy(name: str) -> ServedPolicy:
    probe = Probe(((1, 2, 3),), ((LOGPROB[name],) * 2,), "bfloat16", np.full((1, 8), -2.0))
    return ServedPolicy(name, Path(name), probe, "bfloat16")


def test_a_server_with_the_weights_of_an_interrupted_hand_over_is_not_taken_for_the_policy_before() -> None:
    async def scenario() -> None:
        server, app = Server(), web.Application()
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with VllmClient(url, None, frozenset({0}), 30.0) as client:
                assert (await sync_weights(client, None, policy("A"))).method == "reload"
                assert (await sync_weights(client, None, policy("A"))).method == "kept"
                server.hangs = True
                handing_over = asyncio.create_task(sync_weights(client, None, policy("B")))
                await server.hung.wait()
                handing_over.cancel()
                await asyncio.wait([handing_over])
                assert (server.weights, server.label) == ("B", "loading B")
                server.hangs = False
            async with VllmClient(url, None, frozenset({0}), 30.0) as client:
                assert (await sync_weights(client, None, policy("A"))).method == "reload"
                assert (server.weights, server.label) == ("A", "A")
        finally:
            await runner.cleanup()

    asyncio.run(scenario())
