"""A vLLM server whose engine process is killed while agents play, and while a policy is served.

ERL_TEST_KILLS sets how many times in each case, ERL_TEST_SEED the seed of the moments. A start of the server
follows each.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.engines.interface import POLICY, GenerationRequest, ServedCheckpoint
from erl_pipeline.engines.probe import make_probe, output_head
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.play import ConcurrentSampling, PlayedEpisodes
from erl_pipeline.serving.policies import OpenedPolicy
from storage.serving.aliases import AliasChange
from storage.serving.traffic import ServedTurn
from tests.erl_pipeline.engines.vllm.server_processes import engine_process
from tests.erl_pipeline.engines.vllm.small_policies import ENGINE, save
from tests.erl_pipeline.episodes.gateway.playing import AGENT_OF_THREE_CALLS, TOKENIZER, played
from tests.erl_pipeline.episodes.test_dialogue import end_ids
from tests.erl_pipeline.serving.served import Scripted, Served
from tests.random_models import random_llama

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("ERL_TEST_KILLS", "1"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
CONTEXT = 512
SAMPLES = 16


@dataclass(frozen=True)
class Killed:
    """An engine and what it serves. It tolerates one failure, and gives up at the next."""

    engine: VllmEngine
    checkpoint: ServedCheckpoint

    def kill(self) -> None:
        os.kill(engine_process(self.engine.servers()[0]), signal.SIGKILL)

    def serve(self) -> None:
        self.engine.serve(POLICY, self.checkpoint)

    @property
    def is_serving(self) -> bool:
        return self.engine.served() == self.checkpoint.checkpoint_id


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    model = random_llama(len(TOKENIZER), positions=CONTEXT, eos_token_id=TOKENIZER.eos_token_id)
    base = save(model, folder / "policy")
    checkpoint = ServedCheckpoint(
        "policy", base, output_head(model, base), make_probe(model), end_ids(TOKENIZER)
    )
    config = ENGINE.model_copy(update={"max_failures": 1})
    with VllmEngine(config, folder / "vllm", environment={}) as engine:
        served = Killed(engine, checkpoint)
        served.serve()
        yield served


def agents_played(engine: VllmEngine) -> PlayedEpisodes:
    return played(
        None,
        lambda prompt: pytest.fail("the server answers"),
        command=("python", "-S", str(AGENT_OF_THREE_CALLS)),
        sampling=ConcurrentSampling(engine, max_in_flight=8),
        samples=SAMPLES,
        context_length=CONTEXT,
    )


def without_times(episodes: PlayedEpisodes) -> tuple[Any, ...]:
    """Rows and calls, but for what depends on a batch or on the clock."""
    rows = [replace(row, behaviour_logprobs=()) for row in (*episodes.rows, *episodes.further)]
    calls = [replace(call, arrived_ms=0.0, engine_ms=0.0, gateway_ms=0.0) for call in episodes.calls]
    return rows, calls


def test_calls_of_agents_wait_for_a_killed_engine_and_are_asked_again_with_their_seeds(
    killed: Killed,
) -> None:
    chance = random.Random(SEED)
    begun = time.monotonic()
    expected = without_times(agents_played(killed.engine))
    whole = time.monotonic() - begun
    assert len(expected[0]) == 2 * SAMPLES
    assert len(expected[1]) == 3 * SAMPLES
    for number in range(KILLS):
        if number:
            killed.serve()
        timer = threading.Timer(chance.uniform(0.0, whole), killed.kill)
        timer.start()
        assert without_times(agents_played(killed.engine)) == expected
        timer.join()
    print(f"\nseed {SEED}: killed {KILLS} times while {SAMPLES} agents played for {whole:.1f} s")


def test_an_engine_that_dies_just_before_a_hand_over_is_started_again_and_that_is_no_failure(
    killed: Killed,
) -> None:
    """Nobody was asking when it died. vLLM answers no call that reaches it in that moment, and the server
    does not end before all calls are answered."""
    killed.serve()
    begun = time.monotonic()
    killed.kill()
    (sync,) = killed.engine.serve(POLICY, killed.checkpoint)
    assert sync.method == "restart"
    assert time.monotonic() - begun < ENGINE.progress_seconds
    # The failure that is tolerated is still to come.
    killed.kill()
    (generation,) = killed.engine.generate([GenerationRequest((5, 6, 7), 8, 1.0, 1, "one")])
    assert generation.token_ids


@dataclass
class OnServer(Scripted):
    """A server whose policy is that of a vLLM engine."""

    killed: Killed | None = None

    def open(self, change: AliasChange) -> OpenedPolicy:
        killed = self.killed
        assert killed is not None
        if not killed.is_serving:
            killed.serve()

        async def sample(request: GenerationRequest) -> Any:
            return await killed.engine.sample(replace(request, model=POLICY))

        return OpenedPolicy(
            change,
            ChatTokenizer(TOKENIZER),
            "tokens",
            CONTEXT,
            end_ids(TOKENIZER),
            sample,
            in_place=True,
            is_serving=lambda: killed.is_serving,
        )


def test_calls_of_clients_wait_for_a_killed_engine_or_are_told_to_ask_again(
    killed: Killed, tmp_path: Path
) -> None:
    """An engine that has given up is started again, and each answer is logged once."""
    chance = random.Random(SEED)
    answers: Counter[int] = Counter()
    ids: list[str] = []
    over, answered = asyncio.Event(), asyncio.Event()

    async def ask(served: Served) -> None:
        messages = [{"role": "user", "content": "how many?"}]
        while not over.is_set():
            status, body, answer = await served.post("/v1/chat/completions", {"messages": messages})
            answers[status] += 1
            if status == 200:
                ids.append(body["id"])
                answered.set()
            else:
                assert (status, body["error"]["code"]) == (503, "engine_failed")
                await asyncio.sleep(float(answer.headers["Retry-After"]))

    async def next_answer() -> None:
        answered.clear()
        await answered.wait()

    async def kill() -> None:
        # The test before may have killed it last.
        while len(ids) < 8:
            await next_answer()
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            killed.kill()
            before, process = len(ids), killed.engine.servers()[0].process_id
            while killed.engine.servers()[0].process_id in (None, process) or len(ids) < before + 8:
                await next_answer()
        over.set()

    async def use(served: Served) -> None:
        following = asyncio.create_task(served.service.aliases.watch())
        await asyncio.gather(kill(), *(ask(served) for _ in range(8)))
        following.cancel()
        turns = [each.call_id for each in await served.logged() if isinstance(each, ServedTurn)]
        assert sorted(turns) == sorted(ids)
        assert len(set(turns)) == len(turns)

    OnServer(tmp_path, killed=killed).use(use, killed.engine.run)
    print(f"\nseed {SEED}: killed {KILLS} times; answers by status: {dict(answers)}")
