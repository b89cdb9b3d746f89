"""Deadlines that only a standstill lets pass, by hand and with a real server."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.model_servers import server_arguments
from erl_pipeline.engines.vllm.progress import ProgressDeadlines, tokens_by_copy
from erl_pipeline.engines.vllm.server import ManagedServer
from storage.errors import EngineError
from tests.erl_pipeline.engines.vllm.server_processes import engine_process
from tests.erl_pipeline.engines.vllm.small_policies import CONTEXT, ENGINE, SMALL_SERVER, save, untied_gpt2

METRICS = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="policy"} 256.0
vllm:prompt_tokens_total{engine="1",model_name="a {name}"} 0.0
# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="policy",source="local_compute"} 256.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="policy"} 1.3681e+06
vllm:generation_tokens_total{engine="1",model_name="a {name}"} 0.0
"""


def test_tokens_are_counted_for_each_copy() -> None:
    assert tokens_by_copy(METRICS) == {0: 1_368_356, 1: 0}
    assert not tokens_by_copy("# TYPE python_gc_objects counter\npython_gc_objects_total 3.0\n")


def test_only_the_requests_of_a_copy_that_stands_still_are_lost() -> None:
    """Copy 0 samples a token every 0.1 s and copy 1 does not; a copy may stand still for 0.4 s."""

    async def request(deadlines: ProgressDeadlines, copy: int) -> float:
        started = time.monotonic()
        try:
            async with deadlines.of_request(copy):
                await asyncio.sleep(1.2)
        except TimeoutError:
            return time.monotonic() - started
        return 1.2

    async def scenario() -> list[float]:
        deadlines = ProgressDeadlines(0.4, copies=2)
        requests = [asyncio.create_task(request(deadlines, copy)) for copy in (0, 1)]
        for step in range(14):
            await asyncio.sleep(0.1)
            deadlines.see(Counter({0: 100 + step, 1: 7}))
        assert not deadlines.any_waiting
        return [await each for each in requests]

    moving, still = asyncio.run(scenario())
    assert moving == 1.2
    # The first look sees 7 tokens where none were known.
    assert 0.4 <= still < 0.7


def test_a_server_that_chooses_among_copies_itself_moves_when_one_of_them_does() -> None:
    async def scenario() -> None:
        deadlines = ProgressDeadlines(0.4, copies=1)
        async with deadlines.of_request(0):
            for step in range(8):
                await asyncio.sleep(0.1)
                deadlines.see(Counter({0: 5, 1: step}))

    asyncio.run(scenario())


STANDSTILL_SECONDS = 12.0
"""Where other programs keep the cores busy, a server that works may stand still for six seconds."""
QUEUE_SECONDS = 20.0
"""On a very busy machine it has stood still for more than twelve."""


def start(client: VllmClient, count: int) -> list[asyncio.Task[Generation]]:
    def one(seed: int) -> GenerationRequest:
        return GenerationRequest((7, 8, 9, 10), 100, 1.0, seed, str(seed))

    return [asyncio.create_task(client.generate(one(seed), "default", CONTEXT)) for seed in range(count)]


def through(server: ManagedServer, seconds: float) -> VllmClient:
    return VllmClient(server.url, server.api_key, frozenset(), seconds)


async def warm_up(server: ManagedServer) -> None:
    """The first batch takes seconds."""
    async with through(server, 60.0) as client:
        await client.label_weights("default")
        await asyncio.gather(*start(client, 32))


@pytest.mark.vllm
def test_a_queue_that_is_longer_than_the_deadline_is_no_fault(gpt2_server: ManagedServer) -> None:
    """So many answers of 100 tokens, 32 at a time, that the last waits for longer than the deadline."""

    async def scenario() -> None:
        await warm_up(gpt2_server)
        async with through(gpt2_server, QUEUE_SECONDS) as client:
            longest, taken, count = QUEUE_SECONDS + client._progress.seconds_between_looks, 0.0, 96
            while taken <= longest:  # A machine may sample twice as fast as a moment before.
                count *= 2
                started = time.monotonic()
                answers = await asyncio.gather(*start(client, count))
                taken = time.monotonic() - started
        assert [len(answer.token_ids) for answer in answers] == [100] * count

    asyncio.run(scenario())


@pytest.mark.vllm
def test_a_connection_that_was_idle_for_long_is_still_there(gpt2_server: ManagedServer) -> None:
    where = urlsplit(gpt2_server.url)
    connection = HTTPConnection(str(where.hostname), where.port)

    def ask() -> None:
        connection.request("GET", "/health")
        with connection.getresponse() as answer:
            answer.read()
            assert (answer.status, answer.will_close) == (200, False)

    ask()
    time.sleep(6.0)  # vLLM ends a connection that was idle for five seconds, if nobody says otherwise.
    ask()
    connection.close()


@pytest.mark.vllm
@pytest.mark.parametrize("stopped", ["engine", "all"])
def test_a_server_that_stands_still_is_found_in_time(gpt2_server: ManagedServer, stopped: str) -> None:
    """All requests, under way and waiting, fail when there was no progress for 12 s, seen every 3 s."""
    group = gpt2_server.process_id
    assert group is not None
    send: Callable[[int], None] = (
        (lambda number: os.killpg(group, number))
        if stopped == "all"
        else (lambda number: os.kill(engine_process(gpt2_server), number))
    )

    async def scenario() -> None:
        await warm_up(gpt2_server)
        async with through(gpt2_server, STANDSTILL_SECONDS) as client:
            count, waiting = 300, 0
            while waiting < 64:  # A machine may have answered nearly all before the server stands still.
                count *= 2
                requests = start(client, count)
                await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
                send(signal.SIGSTOP)
                stood_still = time.monotonic()
                try:
                    await asyncio.sleep(1.0)  # for answers that are under way
                    waiting = sum(not each.done() for each in requests)
                    if waiting >= 64:
                        results = await asyncio.gather(*requests, return_exceptions=True)
                finally:
                    send(signal.SIGCONT)
                if waiting < 64:
                    await asyncio.gather(*requests)
            failures = [each for each in results if isinstance(each, BaseException)]
            assert len(failures) > 32  # more than are under way at a time
            assert all(isinstance(each, ServerFailure) for each in failures)
            assert "read and sampled no token for 12 s (progress_seconds)" in str(failures[0])
            # The last look may have been 3 s before, and the next one sees what happened in between. On a
            # busy machine a look itself takes seconds.
            assert 3.0 < time.monotonic() - stood_still < 24.0
        await warm_up(gpt2_server)

    asyncio.run(scenario())


@pytest.mark.vllm
def test_a_server_that_does_not_count_its_tokens_is_refused(tmp_path: Path) -> None:
    arguments = [*server_arguments(ENGINE), "--disable-log-stats"]
    checkpoint = save(untied_gpt2(), tmp_path / "checkpoint")
    log = tmp_path / "server.log"
    with ManagedServer(checkpoint, log, arguments=arguments, environment=SMALL_SERVER) as server:

        async def look() -> None:
            async with through(server, 10.0) as client:
                await client.look_at_progress()

        with pytest.raises(EngineError, match=r"metrics counts tokens of 0 of 1 .*--disable-log-stats"):
            asyncio.run(look())
