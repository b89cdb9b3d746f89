"""`serve-policy` in a process of its own, with a model of random weights that knows every byte."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from erl_pipeline.serving.learning.collect import collect, sealed_batches
from erl_pipeline.serving.settings import EpisodeSettings
from storage.artifacts.store import ArtifactStore
from storage.serving.aliases import alias_changes
from storage.serving.collected import SERVED, SERVED_TRAJECTORIES
from storage.serving.traffic import Feedback, ReadTraffic, Record, ServedTurn, read_traffic, segments
from storage.tables.parquet import read_rows
from tests import forked
from tests.command_line.invoke import invoke
from tests.random_models import save_byte_llama

RUN = "bytes"
FLUSH_MS = 200
CONFIG = """\
name: {run}
iterations: 1
resources: {{threads: 1}}
environment: {{type: frozen_lake, training_boards: 32, rows: [3, 3], path_length: [1, 2], max_steps: 2}}
method: {{type: rlvr}}
policy: {{type: pretrained, model: {folder}/model}}
rollouts: {{tasks_per_iteration: 2, group_size: 2}}
sampling: {{max_new_tokens: 4}}
evaluation: {{tasks: 2}}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("served")
    save_byte_llama(folder / "model", positions=1024, layers=1)
    (folder / "run.yaml").write_text(CONFIG.format(run=RUN, folder=folder))
    trained = invoke("train", folder / "run.yaml", "--store", folder / "store")
    assert trained.status == 0, trained.errors
    return str(folder / "store")


@dataclass(frozen=True)
class Server:
    process: forked.Command
    url: str
    key: str


@contextmanager
def served(store: str, folder: Path, settings: str = "") -> Iterator[Server]:
    """A server that is killed at the end, unless it has ended itself."""
    (folder / "serving.yaml").write_text(settings)
    words = ("serve-policy", RUN, "--store", store, "--port", "0", "--config", str(folder / "serving.yaml"))
    process = forked.start(*words)
    try:
        found: dict[str, str] = {}
        for line in process.stderr:
            name, _, value = line.partition(":")
            found[name] = value.split()[0] if value.strip() else ""
            if name == "Log":
                break
        assert "Log" in found, found
        yield Server(process, found["OpenAI's API"], found["Key"])
    finally:
        if not process.stderr.closed:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.end()


def logged(store: str) -> list[Record]:
    return list(read_traffic(segments(store, RUN), ReadTraffic()))


def test_what_is_logged_is_what_the_checkpoint_sampled(store: str, tmp_path: Path) -> None:
    """The log-probabilities of both turns are those of the checkpoint behind exactly these tokens."""
    with served(store, tmp_path) as server:
        client = openai.OpenAI(base_url=server.url, api_key=server.key)
        messages: Any = [{"role": "user", "content": "go"}]
        for text in ("again", "and again"):
            answer = client.chat.completions.create(model="any", messages=messages, temperature=0.7)
            messages += [answer.choices[0].message, {"role": "user", "content": text}]
        told = client.post(
            f"{server.url.removesuffix('/v1')}/erl/v1/feedback",
            body={"call_id": answer.id, "metric": "thumbs", "value": "up"},
            cast_to=object,
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.end().status == 143
    first, second, feedback = logged(store)
    assert isinstance(first, ServedTurn)
    assert isinstance(second, ServedTurn)
    assert isinstance(feedback, Feedback)
    assert told == {"feedback_id": feedback.feedback_id}
    assert second.after == first.turn_id
    (change,) = alias_changes(store, RUN)
    assert change.checkpoint_id == first.policy_version
    model = AutoModelForCausalLM.from_pretrained(
        ArtifactStore(store).open(first.policy_version).path("model")
    )
    tokens = first.context_token_ids + first.sampled_token_ids
    before = len(tokens) + len(second.context_token_ids)
    tokens += second.context_token_ids + second.sampled_token_ids
    with torch.inference_mode():
        logprobs = (model(torch.tensor([tokens])).logits[0] / 0.7).log_softmax(-1)
    for turn, begin in ((first, len(first.context_token_ids)), (second, before)):
        expected = [
            float(logprobs[begin - 1 + place, token]) for place, token in enumerate(turn.sampled_token_ids)
        ]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("durability", ["each", "batch"])
def test_a_server_that_is_killed_loses_no_answer_that_the_settings_promise_to_keep(
    store: str, tmp_path: Path, durability: str
) -> None:
    """And what is there is there once, in the log and in what is collected. ERL_TEST_KILLS sets how many
    times it is killed, by default once for each durability."""
    draw = random.Random(f"{durability}{os.environ.get('ERL_TEST_SEED', '')}")
    settings = f"log: {{durability: {durability}, flush_ms: {FLUSH_MS}}}\n"
    kills = int(os.environ.get("ERL_TEST_KILLS", "1"))
    answered: Counter[str] = Counter()
    unsure: set[str] = set()
    for _ in range(kills):
        with served(store, tmp_path, settings) as server:
            load = Load(server, draw.randint(20, 60), unsure)
            asyncio.run(load.until_killed())
        records = logged(store)
        for kind, given in (("call_id", load.answered), ("feedback_id", load.told)):
            found = Counter(getattr(each, kind) for each in records if isinstance(each, _HOLDS[kind]))
            assert set(found.values()) <= {1}
            lost = {name: when for name, when in given.items() if name not in found}
            if durability == "each":
                assert not lost
            # Half a second for a machine that is busy: the client sees it later than the server gives it.
            assert all(when > load.killed - FLUSH_MS / 1000 - 0.5 for when in lost.values())
            answered += {kind: len(given), f"{kind} lost": len(lost)}
        unsure = load.unsure
    collect(store, RUN, EpisodeSettings(), datetime.now(UTC) + timedelta(days=2), at_least=0)
    artifacts = ArtifactStore(store)
    files = [artifacts.open(each.trajectories_id).path(SERVED) for each in sealed_batches(store, RUN)]
    sealed = Counter(turn for row in read_rows(files, SERVED_TRAJECTORIES) for turn in row["turn_ids"])
    assert sealed == Counter(each.turn_id for each in logged(store) if isinstance(each, ServedTurn))
    print(f"\n{durability}: killed {kills} times; {dict(answered)}, sealed {sealed.total()} turns")


_HOLDS = {"call_id": ServedTurn, "feedback_id": Feedback}


@dataclass
class Load:
    """Several clients with conversations of two turns, who say what they think of the first, until so many
    calls are answered. At that moment the server is killed.

    `answered` and `told` say when each answer came, and each id of feedback. `unsure` are calls whose
    feedback was not taken, as far as their clients know: they send it again.
    """

    server: Server
    calls: int
    unsure: set[str]
    answered: dict[str, float] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    killed: float = 0.0

    async def until_killed(self) -> None:
        headers = {"Authorization": f"Bearer {self.server.key}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            for call_id in sorted(self.unsure):
                await self._tell(http, call_id)
            ended = await asyncio.gather(*(self._talk(http) for _ in range(8)), return_exceptions=True)
        assert all(error is None or isinstance(error, aiohttp.ClientError) for error in ended), ended

    async def _talk(self, http: aiohttp.ClientSession) -> None:
        while not self.killed:
            messages: Any = [{"role": "user", "content": "go"}]
            call_id, said = await self._ask(http, messages)
            await self._tell(http, call_id)
            await self._ask(http, [*messages, said, {"role": "user", "content": "on"}])

    async def _ask(self, http: aiohttp.ClientSession, messages: Any) -> tuple[str, Any]:
        body = {"messages": messages, "max_tokens": 2}
        async with http.post(f"{self.server.url}/chat/completions", json=body) as answer:
            told = await answer.json()
        assert answer.status == 200, told
        self.answered[told["id"]] = time.monotonic()
        if len(self.answered) >= self.calls and not self.killed:
            self.server.process.send_signal(signal.SIGKILL)
            self.killed = time.monotonic()
        return told["id"], told["choices"][0]["message"]

    async def _tell(self, http: aiohttp.ClientSession, call_id: str) -> None:
        """Rate a call; the same key again is logged once. A call that a kill has lost is not known."""
        url = f"{self.server.url.removesuffix('/v1')}/erl/v1/feedback"
        body = {"call_id": call_id, "metric": "thumbs", "value": "up", "idempotency_key": call_id}
        self.unsure.add(call_id)
        async with http.post(url, json=body) as answer:
            if answer.status == 200:
                self.told[(await answer.json())["feedback_id"]] = time.monotonic()
            else:
                assert answer.status == 404
        self.unsure.discard(call_id)


def test_what_cannot_be_served_is_said(store: str) -> None:
    for words, said in (
        (("other",), "run other"),
        ((RUN, "--canary", "candidate"), "allowed is ALIAS:SHARE"),
        ((RUN, "--config", "none.yaml"), "none.yaml: no such file"),
    ):
        result = invoke("serve-policy", *words, "--store", store)
        assert result.status == 2
        assert said in result.errors
