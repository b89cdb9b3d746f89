"""What the gateway adds to the calls of agents.

    make smollm2
    python benchmarks/gateway_speed.py --runs 5 --write

Agents in a process of their own ask the gateway; each makes some calls in one growing conversation, and waits
50 ms on average before each, drawn from 0 to 100 ms so that they do not call in step. The engine is scripted:
an answer takes a fixed time for each of its tokens, however many are under way. With `engine` as many agents
ask it in its own process, without texts. What a call takes beyond the tokens' time is added: HTTP, reading
the request, matching its history, rendering, tokens to text, and the wait for other calls.

The last column is `AttemptSequences.place` alone: for a request with 200 messages of 100 characters, which
goes on from the last answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import measurements
from measurements import SMOLLM2, Column, Figures

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.messages import Message, assistant_message, user_message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from erl_pipeline.episodes.dialogue import ChatTokenizer

GATEWAY, ENGINE = "gateway", "engine"
AGENTS, CALLS, WAIT_SECONDS = 64, 12, 0.05
TOKENS, TOKEN_SECONDS = 32, 0.005
MESSAGES, CHARACTERS, PLACED = 200, 100, 200
COLUMNS = (
    Column("tokens_per_second", "tokens/s", 0),
    Column("added_ms", "added ms a call, median", 2),
    Column("added_ms_most", "of 100 calls, 99 within ms", 2),
    Column("place_ms", f"ms to match {MESSAGES} messages", 3),
)


def main() -> None:
    parser = measurements.argument_parser(__doc__ or "")
    parser.add_argument("--model", default=str(SMOLLM2), help="the folder of the tokenizer")
    parser.add_argument("--agents", action="store_true", help="be the agents' process")
    arguments = measurements.parse_arguments(parser)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.agents:
        asyncio.run(be_agents(json.load(sys.stdin)))
        return
    if arguments.contender:
        measured = measure_gateway if arguments.contender == GATEWAY else measure_engine
        arguments.figures.write_text(json.dumps(asyncio.run(measured(arguments.model))))
        return
    if arguments.model == str(SMOLLM2):
        measurements.require_checkpoint(SMOLLM2)
    measurements.compare_contenders(
        "gateway_speed",
        [GATEWAY, ENGINE],
        COLUMNS,
        arguments,
        ["--model", arguments.model],
        ["aiohttp", "transformers"],
        f"{AGENTS * CALLS} requests, ",
    )


async def measure_gateway(model: str) -> Figures:
    from erl_pipeline.environments.interface import AgentLimits
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.episodes.gateway.server import Gateway
    from erl_pipeline.episodes.gateway.session import AgentSession, AskedPolicy
    from erl_pipeline.policies.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(model)
    chat, answer, ends = ChatTokenizer(tokenizer), _answer(tokenizer), frozenset({tokenizer.eos_token_id})
    limits = AgentLimits(600.0, CALLS, CALLS * TOKENS)

    async def ask(request: GenerationRequest) -> Generation:
        await asyncio.sleep(len(answer.token_ids) * TOKEN_SECONDS)
        return answer

    async def unchanged(messages: Sequence[Message], _tools: object) -> Sequence[Message]:
        return messages

    async with Gateway() as gateway, AsyncExitStack() as stack:
        endpoints = []
        for agent in range(AGENTS):
            policy = AskedPolicy(chat, 100_000, ends, "policy", 1.0, TOKENS, agent, f"agent-{agent}", ask)
            session = AgentSession(policy, limits, unchanged)
            served = await stack.enter_async_context(gateway.serving(session, 0, 600.0))
            endpoints.append((served.base_url, served.api_key))
        agents = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--agents",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await agents.communicate(json.dumps(endpoints).encode())
    return {**_figures(json.loads(said)), "place_ms": _place_ms(chat, answer)}


async def measure_engine(model: str) -> Figures:
    async def agent(number: int) -> list[float]:
        taken = []
        for seconds in _waits(number):
            await asyncio.sleep(seconds)
            began = time.perf_counter()
            await asyncio.sleep(TOKENS * TOKEN_SECONDS)
            taken.append(time.perf_counter() - began)
        return taken

    began = time.perf_counter()
    calls = await asyncio.gather(*map(agent, range(AGENTS)))
    return {**_figures({"calls": calls, "seconds": time.perf_counter() - began}), "place_ms": 0.0}


def _answer(tokenizer: PreTrainedTokenizerBase) -> Generation:
    """What the policy always says: words, and the end of its turn."""
    words = tokenizer("word " * TOKENS, add_special_tokens=False)["input_ids"][: TOKENS - 1]
    return Generation((*words, tokenizer.eos_token_id), (-0.5,) * TOKENS, "stop")


async def be_agents(endpoints: Sequence[tuple[str, str]]) -> None:
    """Play an attempt at each endpoint, all at the same time, and print how long each call took."""
    import aiohttp

    async def agent(number: int, url: str, key: str) -> list[float]:
        messages = [user_message("word " * (CHARACTERS // 5))]
        taken = []
        for seconds in _waits(number):
            await asyncio.sleep(seconds)
            began = time.perf_counter()
            async with http.post(
                f"{url}/chat/completions",
                json={"messages": messages},
                headers={"Authorization": f"Bearer {key}"},
            ) as answer:
                said = (await answer.json())["choices"][0]["message"]["content"]
            taken.append(time.perf_counter() - began)
            messages += [assistant_message(said), user_message("go on")]
        return taken

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AGENTS)) as http:
        began = time.perf_counter()
        calls = await asyncio.gather(*(agent(number, *each) for number, each in enumerate(endpoints)))
        print(json.dumps({"calls": calls, "seconds": time.perf_counter() - began}))


def _waits(agent: int) -> list[float]:
    """Seconds before each of an agent's calls."""
    draw = random.Random(agent)
    return [draw.uniform(0.0, 2 * WAIT_SECONDS) for _ in range(CALLS)]


def _figures(found: dict[str, Any]) -> Figures:
    """The first call of an agent, which also connects, is not counted."""
    added = [1000 * (call - TOKENS * TOKEN_SECONDS) for calls in found["calls"] for call in calls[1:]]
    return {
        "tokens_per_second": AGENTS * CALLS * TOKENS / found["seconds"],
        "added_ms": statistics.median(added),
        "added_ms_most": statistics.quantiles(added, n=100)[-1],
    }


def _place_ms(chat: ChatTokenizer, answer: Generation) -> float:
    """The median time to find the place of a request in an attempt with so many messages."""
    from erl_pipeline.episodes.gateway.sequences import AttemptSequences

    sequences = AttemptSequences(chat, frozenset(answer.token_ids[-1:]))
    history: list[Message] = []
    while len(history) < MESSAGES:
        history.append(user_message(f"{len(history):{CHARACTERS}d}"))
        sequences.answer(sequences.place(history, history, ()), answer, seed=0)
        history.append(sequences.sequences[-1].messages[-1])
    history[-1:] = [history[-1], user_message("go on")]
    taken = []
    for _ in range(PLACED):
        # As a request that was just read: other objects with the same content.
        asked: list[Message] = json.loads(json.dumps(history))
        began = time.perf_counter()
        call = sequences.place(asked, asked, ())
        taken.append(1000 * (time.perf_counter() - began))
        assert call.after is not None
        sequences.give_up(call)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
