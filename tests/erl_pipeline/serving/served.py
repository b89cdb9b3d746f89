"""A server in this process whose policies say what a test wants them to say."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai

from erl_pipeline.config.rollouts import SamplingConfig
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.serving.aliases import Canary, ServedAliases
from erl_pipeline.serving.answering import PolicyService
from erl_pipeline.serving.keys import ClientKey, KeyRing
from erl_pipeline.serving.known import KnownTraffic
from erl_pipeline.serving.notes import NoteSearch
from erl_pipeline.serving.policies import OpenedPolicy
from erl_pipeline.serving.server import PolicyServer
from erl_pipeline.serving.settings import ServingSettings
from erl_pipeline.serving.writing import LogWriter
from storage.errors import EngineError
from storage.serving.aliases import AliasChange, change_alias
from storage.serving.traffic import ReadTraffic, Record, ServedTurn, TrafficLog, read_traffic, segments
from tests.erl_pipeline.episodes.test_dialogue import chatml_tokenizer, end_ids, said
from tests.storage.serving.aliases import alias_change

TOKENIZER = chatml_tokenizer()
RUN = "lake"
KEYS = {"key-a": "a", "key-b": "b"}
Says = Callable[[str, GenerationRequest], Awaitable[Generation]]
"""What a checkpoint samples for a request."""


async def names_itself(checkpoint: str, request: GenerationRequest) -> Generation:
    """Says the name of the checkpoint, and how many tokens it was asked with."""
    text = f"{checkpoint} after {len(request.prompt_token_ids)}"
    return said(TOKENIZER, f"{text}<|im_end|>")


class HeldAnswers:
    """Says yes to each call, but not before `go_on` is set; `begun`: a call is under way."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, checkpoint: str, request: GenerationRequest) -> Generation:
        self.begun.set()
        await self.go_on.wait()
        return said(TOKENIZER, "yes<|im_end|>")


@dataclass
class Served:
    """What a test uses of a server. `told` is what people were told."""

    store: str
    url: str
    service: PolicyService
    http: aiohttp.ClientSession
    told: list[str]

    def openai(self, key: str = "key-a", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    async def post(
        self, path: str, body: object, key: str = "key-a"
    ) -> tuple[int, Any, aiohttp.ClientResponse]:
        sent = {"data": body} if isinstance(body, bytes) else {"json": body}
        headers = {"Authorization": f"Bearer {key}"}
        async with self.http.post(f"{self.url}{path}", headers=headers, **sent) as answer:
            return answer.status, await answer.json(), answer

    async def chat(self, *texts: str, key: str = "key-a", **fields: Any) -> tuple[str, Mapping[str, str]]:
        """The answer to a conversation of user and assistant in turn, and its headers."""
        roles = ("user", "assistant") * len(texts)
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        status, body, answer = await self.post("/v1/chat/completions", {"messages": messages, **fields}, key)
        assert status == 200, body
        return body["choices"][0]["message"]["content"], answer.headers

    async def promote(self, checkpoint: str, alias: str = "production") -> None:
        change_alias(self.store, RUN, alias_change(checkpoint, alias, run=RUN))
        await self.service.aliases.follow()

    async def health(self) -> Any:
        async with self.http.get(f"{self.url}/erl/v1/health") as answer:
            return await answer.json()

    async def logged(self) -> list[Record]:
        """The log as it is on disk once nothing waits."""
        while self.service.log.waiting or self.service.log.lag_seconds:
            await asyncio.sleep(0.005)
        return list(read_traffic(segments(self.store, RUN), ReadTraffic()))


async def turns(served: Served) -> list[ServedTurn]:
    return [record for record in await served.logged() if isinstance(record, ServedTurn)]


@dataclass
class Scripted:
    """How a server of a test is made."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    says: Says = names_itself
    canary: Canary | None = None
    in_place: bool = False
    notes: NoteSearch | None = None
    opened: list[str] = field(default_factory=list)
    """The checkpoints that were opened, in order. One whose name begins with `broken` cannot be, nor one that
    is `too large` or `larger than memory`."""
    given_up: set[str] = field(default_factory=set)
    """Those whose engine has failed too often, until they are opened again."""
    keys: Mapping[str, ClientKey] = field(
        default_factory=lambda: {key: ClientKey(tenant=tenant) for key, tenant in KEYS.items()}
    )

    def open(self, change: AliasChange) -> OpenedPolicy:
        self.opened.append(change.checkpoint_id)
        if change.checkpoint_id.startswith("broken"):
            raise EngineError("its weights do not prove themselves")
        if change.checkpoint_id == "too large":
            raise RuntimeError("CUDA out of memory")  # As torch's OutOfMemoryError is one.
        if change.checkpoint_id == "larger than memory":
            raise MemoryError
        self.given_up.discard(change.checkpoint_id)

        async def sample(request: GenerationRequest) -> Generation:
            if change.checkpoint_id in self.given_up:
                raise EngineError("more than 3 failures")
            return await self.says(change.checkpoint_id, request)

        return OpenedPolicy(
            change,
            ChatTokenizer(TOKENIZER),
            "tokens",
            2000,
            end_ids(TOKENIZER),
            sample,
            self.in_place,
            is_serving=lambda: change.checkpoint_id not in self.given_up,
        )

    def use(
        self,
        use: Callable[[Served], Awaitable[None]],
        run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
    ) -> None:
        """Serve checkpoint `one` as production, and use the server. `run` runs it in an event loop."""
        run(self._use(use))

    async def _use(self, use: Callable[[Served], Awaitable[None]]) -> None:
        store, told = str(self.folder), list[str]()
        settings = ServingSettings.model_validate(dict(self.settings))
        records = read_traffic(segments(store, RUN), ReadTraffic())
        traffic = KnownTraffic(records)
        log = TrafficLog(store, RUN)
        writer = LogWriter(log, settings.log, told.append)
        aliases = ServedAliases(
            store,
            RUN,
            "production",
            self.canary,
            [self.open(alias_change("one", run=RUN))],
            self.open,
            told.append,
        )
        sampling = SamplingConfig(max_new_tokens=50, temperature=0.5)
        service = PolicyService(settings, sampling, aliases, traffic, writer, b"k" * 32, self.notes)
        keys = KeyRing({hashlib.sha256(key.encode()).hexdigest(): of for key, of in self.keys.items()})
        flushing = asyncio.create_task(writer.flush_forever())
        async with (
            PolicyServer(service, keys, RUN).listening("127.0.0.1", 0) as url,
            aiohttp.ClientSession() as http,
        ):
            await use(Served(store, url, service, http, told))
        flushing.cancel()
        log.close()
