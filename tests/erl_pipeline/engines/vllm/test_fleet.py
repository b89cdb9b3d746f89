"""Two ways to one real server: each can be closed, as when a machine or its network is gone."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.vllm.client import VllmClient
from erl_pipeline.engines.vllm.probe import make_probe
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.server_pool import Fleet, Member
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
    checkpoint: Path = save(model, tmp_path_factory.mktemp("fleet") / "checkpoint")
    return ServedPolicy("fleet-policy", checkpoint, make_probe(model), "float32")


Scenario = Callable[[Fleet, list[Member], list[Door]], Awaitable[None]]


def with_two_doors(
    server: ManagedServer,
    policy: ServedPolicy,
    scenario: Scenario,
    max_failures: int = 1,
    recovery_seconds: float = 60.0,
) -> None:
    async def run() -> None:
        async with Fleet([Member(client(server.url, server))], 0, 0.0) as direct:
            await direct.serve(policy)
        doors = [Door(server), Door(server)]
        for door in doors:
            await door.open()
        members = [Member(client(f"http://127.0.0.1:{door.port}", server)) for door in doors]
        async with Fleet(members, max_failures, recovery_seconds) as fleet:
            handovers = await fleet.serve(policy)
            assert [handover.method for handover in handovers] == ["kept", "kept"]
            await scenario(fleet, members, doors)
        for door in doors:
            door.close()

    asyncio.run(run())


def client(url: str, server: ManagedServer) -> VllmClient:
    return VllmClient(url, server.api_key, frozenset({END}), request_seconds=60.0)


def request(seed: int) -> GenerationRequest:
    return GenerationRequest((7, 8, 9, 10 + seed), 40, 1.0, seed, str(seed))


def start(fleet: Fleet, count: int) -> list[asyncio.Task[Generation]]:
    return [asyncio.create_task(fleet.generate(request(seed))) for seed in range(count)]


def assert_sampled_from(model: PreTrainedModel, answers: list[Generation]) -> None:
    for seed, answer in enumerate(answers):
        expected = logprobs_of(model, request(seed).prompt_token_ids, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_requests_go_to_the_least_busy(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(fleet: Fleet, members: list[Member], doors: list[Door]) -> None:
        tasks = start(fleet, 6)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [member.in_flight for member in members] == [3, 3]
        assert_sampled_from(model, await asyncio.gather(*tasks))
        assert [member.in_flight for member in members] == [0, 0]

    with_two_doors(gpt2_server, policy, scenario)


def test_a_server_that_fails_is_set_aside_and_comes_back(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(fleet: Fleet, members: list[Member], doors: list[Door]) -> None:
        doors[0].close()
        assert_sampled_from(model, await asyncio.gather(*start(fleet, 6)))
        assert [member.available for member in members] == [False, True]
        assert members[0].recovery is not None
        await doors[0].open()
        await members[0].recovery
        assert members[0].available
        tasks = start(fleet, 2)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [member.in_flight for member in members] == [1, 1]
        assert_sampled_from(model, await asyncio.gather(*tasks))

    with_two_doors(gpt2_server, policy, scenario)


def test_a_server_with_other_weights_is_set_right(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(fleet: Fleet, members: list[Member], doors: list[Door]) -> None:
        doors[1].close()
        await members[0].client.label_weights("somebody-elses")
        assert_sampled_from(model, [await fleet.generate(request(0))])
        assert await members[0].client.weights_label() == "fleet-policy"

    with_two_doors(gpt2_server, policy, scenario, max_failures=2)


def test_too_many_failures_stop_the_run(gpt2_server: ManagedServer, policy: ServedPolicy) -> None:
    async def scenario(fleet: Fleet, members: list[Member], doors: list[Door]) -> None:
        doors[0].close()
        with pytest.raises(EngineError, match=r"more than 0 failures \(max_failures\)\nhttp://127"):
            await asyncio.gather(*start(fleet, 2))

    with_two_doors(gpt2_server, policy, scenario, max_failures=0)


def test_the_run_stops_when_no_server_comes_back(gpt2_server: ManagedServer, policy: ServedPolicy) -> None:
    async def scenario(fleet: Fleet, members: list[Member], doors: list[Door]) -> None:
        for door in doors:
            door.close()
        with pytest.raises(EngineError, match=r"no server came back within 0\.5 s"):
            await asyncio.gather(*start(fleet, 2))

    with_two_doors(gpt2_server, policy, scenario, max_failures=2, recovery_seconds=0.5)
