"""Two addresses of one real server: each can be closed, as if a machine or its network had failed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.serving import make_probe
from erl_pipeline.engines.vllm.client import VllmClient
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.server_pool import Replica, ServerPool
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy
from storage.errors import EngineError
from tests.erl_pipeline.engines.vllm.small_policies import END, logprobs_of, save, untied_gpt2

pytestmark = pytest.mark.vllm


class Door:
    """A port that leads to the server while it is open; closing it cuts the connections that exist."""

    def __init__(self, server: ManagedServer) -> None:
        self.port = 0
        self._target = urlsplit(server.url).port
        self._listener: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, far_writer]
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return untied_gpt2()


@pytest.fixture(scope="module")
def policy(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> ServedPolicy:
    checkpoint: Path = save(model, tmp_path_factory.mktemp("pool") / "checkpoint")
    return ServedPolicy("pool-policy", checkpoint, make_probe(model), "float32")


Scenario = Callable[[ServerPool, list[Replica], list[Door]], Awaitable[None]]


def with_two_doors(
    server: ManagedServer,
    policy: ServedPolicy,
    scenario: Scenario,
    max_failures: int = 1,
    recovery_seconds: float = 60.0,
) -> None:
    async def run() -> None:
        async with ServerPool([Replica(client(server.url, server))], 0, 0.0) as direct:
            await direct.serve(policy)
        doors = [Door(server), Door(server)]
        for door in doors:
            await door.open()
        replicas = [Replica(client(f"http://127.0.0.1:{door.port}", server)) for door in doors]
        async with ServerPool(replicas, max_failures, recovery_seconds) as pool:
            syncs = await pool.serve(policy)
            assert [sync.method for sync in syncs] == ["kept", "kept"]
            await scenario(pool, replicas, doors)
        for door in doors:
            door.close()

    asyncio.run(run())


def client(url: str, server: ManagedServer) -> VllmClient:
    return VllmClient(url, server.api_key, frozenset({END}), request_seconds=60.0)


def request(seed: int) -> GenerationRequest:
    return GenerationRequest((7, 8, 9, 10 + seed), 40, 1.0, seed, str(seed))


def start(pool: ServerPool, count: int) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(pool.generate(request(seed))) for seed in range(count)]


def assert_sampled_from(model: PreTrainedModel, answers: list[Generation]) -> None:
    for seed, answer in enumerate(answers):
        expected = logprobs_of(model, request(seed).prompt_token_ids, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_requests_go_to_the_least_busy(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Door]) -> None:
        tasks = start(pool, 6)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [replica.in_flight for replica in replicas] == [3, 3]
        assert_sampled_from(model, await asyncio.gather(*tasks))
        assert [replica.in_flight for replica in replicas] == [0, 0]

    with_two_doors(gpt2_server, policy, scenario)


def test_a_group_is_answered_by_the_server_that_has_its_prompt(
    gpt2_server: ManagedServer, policy: ServedPolicy
) -> None:
    """There are three groups of 4 attempts; each prompt has two blocks of 16 tokens."""
    groups = [
        [GenerationRequest((7 + group,) * 32, 8, 1.0, seed, str(seed)) for seed in range(4)]
        for group in range(3)
    ]

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Door]) -> None:
        tasks = []
        for requests, expected in zip(groups, ([4, 0], [4, 4], [8, 4]), strict=True):
            tasks += [asyncio.create_task(pool.generate(each)) for each in requests]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
            assert [replica.in_flight for replica in replicas] == expected
        await asyncio.gather(*tasks)

    with_two_doors(gpt2_server, policy, scenario)


def test_a_server_that_fails_is_set_aside_and_comes_back(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Door]) -> None:
        doors[0].close()
        assert_sampled_from(model, await asyncio.gather(*start(pool, 6)))
        assert [replica.available for replica in replicas] == [False, True]
        assert replicas[0].recovery is not None
        await doors[0].open()
        await replicas[0].recovery
        assert replicas[0].available
        tasks = start(pool, 2)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [replica.in_flight for replica in replicas] == [1, 1]
        assert_sampled_from(model, await asyncio.gather(*tasks))

    with_two_doors(gpt2_server, policy, scenario)


def test_a_server_with_other_weights_is_set_right(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Door]) -> None:
        doors[1].close()
        await replicas[0].client.label_weights("somebody-elses")
        assert_sampled_from(model, [await pool.generate(request(0))])
        assert await replicas[0].client.weights_label() == "pool-policy"

    with_two_doors(gpt2_server, policy, scenario, max_failures=2)


def test_too_many_failures_stop_the_run(gpt2_server: ManagedServer, policy: ServedPolicy) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Door]) -> None:
        doors[0].close()
        with pytest.raises(EngineError, match=r"more than 0 failures \(max_failures\)\nhttp://127"):
            await asyncio.gather(*start(pool, 2))

    with_two_doors(gpt2_server, policy, scenario, max_failures=0)


def test_the_run_stops_when_no_server_comes_back(gpt2_server: ManagedServer, policy: ServedPolicy) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Door]) -> None:
        for door in doors:
            door.close()
        with pytest.raises(EngineError, match=r"no server came back within 0\.5 s"):
            await asyncio.gather(*start(pool, 2))

    with_two_doors(gpt2_server, policy, scenario, max_failures=2, recovery_seconds=0.5)
