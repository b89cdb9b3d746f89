"""`serve-policy` in a process of its own, with a model of random weights that knows every byte."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from storage.artifacts.store import ArtifactStore
from storage.serving.aliases import alias_changes
from storage.serving.traffic import Feedback, ReadTraffic, Record, ServedTurn, read_traffic, segments
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
    process: subprocess.Popen[str]
    url: str
    key: str


@contextmanager
def served(store: str, folder: Path, settings: str = "") -> Iterator[Server]:
    """A server that is killed at the end, unless it has ended itself."""
    (folder / "serving.yaml").write_text(settings)
    words = ("serve-policy", RUN, "--store", store, "--port", "0", "--config", str(folder / "serving.yaml"))
    process = subprocess.Popen(
        [sys.executable, "-m", "command_line.main", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        found: dict[str, str] = {}
        assert process.stderr is not None
        for line in process.stderr:
            name, _, value = line.partition(":")
            found[name] = value.split()[0] if value.strip() else ""
            if name == "Log":
                break
        assert "Log" in found, found
        yield Server(process, found["OpenAI's API"], found["Key"])
    finally:
        process.kill()
        process.communicate()


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
        assert server.process.wait(60) == 143
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


@pytest.mark.parametrize("durability", ["each", "batch"])
def test_a_server_that_is_killed_loses_no_answer_that_the_settings_promise_to_keep(
    store: str, tmp_path: Path, durability: str
) -> None:
    """ERL_TEST_KILLS sets how many times it is killed, by default once for each durability."""
    draw = random.Random(durability)
    settings = f"log: {{durability: {durability}, flush_ms: {FLUSH_MS}}}\n"
    for _ in range(int(os.environ.get("ERL_TEST_KILLS", "1"))):
        with served(store, tmp_path, settings) as server:
            answered, killed = asyncio.run(_load_until_killed(server, draw.randint(20, 60)))
        found = Counter(record.call_id for record in logged(store) if isinstance(record, ServedTurn))
        assert set(found.values()) == {1}
        lost = {call_id: when for call_id, when in answered.items() if call_id not in found}
        if durability == "each":
            assert not lost
        # Half a second for a machine that is busy: the client sees an answer later than the server gives it.
        assert all(when > killed - FLUSH_MS / 1000 - 0.5 for when in lost.values())


async def _load_until_killed(server: Server, calls: int) -> tuple[dict[str, float], float]:
    """Ask from several clients until so many calls are answered, and kill the server at that moment; returns
    when each answer came, and when it was killed."""
    answered: dict[str, float] = {}
    killed = 0.0

    async def ask(http: aiohttp.ClientSession) -> None:
        nonlocal killed
        body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 2}
        while not killed:
            async with http.post(f"{server.url}/chat/completions", json=body) as answer:
                if answer.status == 200:
                    answered[(await answer.json())["id"]] = time.monotonic()
            if len(answered) >= calls and not killed:
                server.process.kill()
                killed = time.monotonic()

    headers = {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        ended = await asyncio.gather(*(ask(http) for _ in range(8)), return_exceptions=True)
    assert all(error is None or isinstance(error, aiohttp.ClientError) for error in ended), ended
    return answered, killed


def test_what_cannot_be_served_is_said(store: str) -> None:
    for words, said in (
        (("other",), "run other"),
        ((RUN, "--canary", "candidate"), "allowed is ALIAS:SHARE"),
        ((RUN, "--config", "none.yaml"), "none.yaml: no such file"),
    ):
        result = invoke("serve-policy", *words, "--store", store)
        assert result.status == 2
        assert said in result.errors
