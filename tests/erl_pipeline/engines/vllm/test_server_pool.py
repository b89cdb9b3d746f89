"""Two addresses of one real server: each can be closed, as if a machine or its network had failed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.probe import make_probe
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.model_servers import ListedServers
from erl_pipeline.engines.vllm.replica import Replica
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.server_pool import ServerPool
from erl_pipeline.engines.vllm.settings import ServerAddress
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy
from storage.errors import ConfigError, EngineError
from tests.erl_pipeline.engines.vllm.small_policies import END, logprobs_of, save, untied_gpt2
from tests.proxy import Proxy

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return untied_gpt2()


@pytest.fixture(scope="module")
def policy(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> ServedPolicy:
    checkpoint: Path = save(model, tmp_path_factory.mktemp("pool") / "checkpoint")
    return ServedPolicy("pool-policy", checkpoint, make_probe(model), "float32")


Scenario = Callable[[ServerPool, list[Replica], list[Proxy]], Awaitable[None]]


def with_two_doors(
    server: ManagedServer,
    policy: ServedPolicy,
    scenario: Scenario,
    max_failures: int = 1,
    recovery_seconds: float = 60.0,
    warn: Callable[[str], None] = lambda message: None,
    forgiving_seconds: float = 1800.0,
) -> None:
    async def run() -> None:
        async with ServerPool(0, 0.0) as direct:
            await direct.admit(Replica(client(server.url, server)))
            await direct.serve(policy)
        doors = [Proxy(port_of(server)), Proxy(port_of(server))]
        for door in doors:
            await door.open()
        replicas = [through(door, server) for door in doors]
        async with ServerPool(max_failures, recovery_seconds, warn, forgiving_seconds) as pool:
            for replica in replicas:
                await pool.admit(replica)
            await pool.serve(policy)
            assert [sync.method for sync in await pool.all_serving()] == ["kept", "kept"]
            await scenario(pool, replicas, doors)
        for door in doors:
            door.close()

    asyncio.run(run())


def port_of(server: ManagedServer) -> int:
    port = urlsplit(server.url).port
    assert port is not None
    return port


def client(url: str, server: ManagedServer) -> VllmClient:
    return VllmClient(url, server.api_key, frozenset({END}), progress_seconds=60.0)


def through(door: Proxy, server: ManagedServer) -> Replica:
    return Replica(client(f"http://127.0.0.1:{door.port}", server))


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
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        tasks = start(pool, 6)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [replica.in_flight for replica in replicas] == [[3], [3]]
        assert_sampled_from(model, await asyncio.gather(*tasks))
        assert [replica.in_flight for replica in replicas] == [[0], [0]]

    with_two_doors(gpt2_server, policy, scenario)


def test_a_group_is_answered_by_the_server_that_has_its_prompt(
    gpt2_server: ManagedServer, policy: ServedPolicy
) -> None:
    """There are three groups of 4 attempts; each prompt has two blocks of 16 tokens."""
    groups = [
        [GenerationRequest((7 + group,) * 32, 8, 1.0, seed, str(seed)) for seed in range(4)]
        for group in range(3)
    ]

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        tasks = []
        for requests, expected in zip(groups, ([4, 0], [4, 4], [8, 4]), strict=True):
            tasks += [asyncio.create_task(pool.generate(each)) for each in requests]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
            assert [replica.in_flight[0] for replica in replicas] == expected
        await asyncio.gather(*tasks)

    with_two_doors(gpt2_server, policy, scenario)


def test_a_server_that_fails_is_set_aside_and_comes_back(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        doors[0].close()
        assert_sampled_from(model, await asyncio.gather(*start(pool, 6)))
        assert [replica.available for replica in replicas] == [False, True]
        assert replicas[0].recovery is not None
        await doors[0].open()
        await replicas[0].recovery
        assert replicas[0].available
        tasks = start(pool, 2)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [replica.in_flight for replica in replicas] == [[1], [1]]
        assert_sampled_from(model, await asyncio.gather(*tasks))

    with_two_doors(gpt2_server, policy, scenario)


def test_a_server_with_other_weights_is_set_right(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        doors[1].close()
        await replicas[0].client.label_weights("somebody-elses")
        assert_sampled_from(model, [await pool.generate(request(0))])
        assert await replicas[0].client.weights_label() == "pool-policy"

    with_two_doors(gpt2_server, policy, scenario, max_failures=2)


def test_a_server_that_fails_too_often_is_left_out_and_the_run_stops_when_all_do(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    told = list[str]()

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        doors[0].close()
        assert_sampled_from(model, await asyncio.gather(*start(pool, 4)))
        (warning,) = told
        assert f"{doors[0].port} gets no more requests of this policy after more than 0 failures" in warning
        await doors[0].open()
        assert [sync.url for sync in await pool.all_serving()] == [replicas[1].client.url]
        doors[1].close()
        with pytest.raises(EngineError, match=r"more than 0 failures \(max_failures\)(\nhttp://127.*){2}$"):
            await asyncio.gather(*start(pool, 2))
        # Another policy, another chance.
        await doors[1].open()
        await pool.serve(policy)
        assert len(await pool.all_serving()) == 2

    with_two_doors(gpt2_server, policy, scenario, max_failures=0, warn=told.append)


@pytest.mark.parametrize(("forgiving_seconds", "left_out"), [(0.0, False), (1800.0, True)])
def test_a_server_earns_its_failures_back(
    gpt2_server: ManagedServer, policy: ServedPolicy, forgiving_seconds: float, left_out: bool
) -> None:
    """It fails twice, and one failure is tolerated."""

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        for _ in range(2):
            doors[0].close()
            await asyncio.gather(*start(pool, 4))
            await doors[0].open()
            assert replicas[0].recovery is not None
            await replicas[0].recovery
        assert replicas[0].left_out is left_out

    with_two_doors(gpt2_server, policy, scenario, forgiving_seconds=forgiving_seconds)


def test_a_server_of_our_own_that_does_not_start_is_left_out(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel, tmp_path: Path
) -> None:
    told = list[str]()
    broken = ManagedServer(policy.folder, tmp_path / "server.log", executable="/bin/false")

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        await pool.admit(Replica(client(broken.url, broken), broken))
        await pool.all_serving()
        assert_sampled_from(model, await asyncio.gather(*start(pool, 4)))
        assert told == [
            f"{broken.url} gets no more requests of this policy after more than 1 failures (max_failures); "
            f"the last: {broken.url}: the vLLM server ended before it was ready"
        ]

    with_two_doors(gpt2_server, policy, scenario, max_failures=1, warn=told.append)


def test_the_run_stops_when_no_server_comes_back(gpt2_server: ManagedServer, policy: ServedPolicy) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        for door in doors:
            door.close()
        with pytest.raises(EngineError, match=r"no server came back within 0\.5 s"):
            await asyncio.gather(*start(pool, 2))

    with_two_doors(gpt2_server, policy, scenario, max_failures=2, recovery_seconds=0.5)


def test_sampling_begins_with_the_first_server_and_others_follow_with_their_own_proofs(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    """One of two servers is away when the policy is handed over, and nobody has to wait for it."""

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        doors[1].close()
        (sync,) = await pool.serve(policy)
        assert (sync.url, sync.policy_version) == (replicas[0].client.url, "pool-policy")
        assert_sampled_from(model, await asyncio.gather(*start(pool, 4)))
        assert replicas[1].sync is None
        await doors[1].open()
        assert [each.url for each in await pool.all_serving()] == [each.client.url for each in replicas]

    with_two_doors(gpt2_server, policy, scenario, max_failures=0)


def test_a_server_that_is_busy_with_an_earlier_policy_gets_the_newest_next(
    gpt2_server: ManagedServer, policy: ServedPolicy
) -> None:
    """Both servers are away while two policies are handed over; what they prove at last is the second."""

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        doors[1].close()
        await pool.serve(policy)
        recovery = replicas[1].recovery
        await pool.serve(replace(policy, policy_version="newest"))
        assert replicas[1].recovery is recovery
        await doors[1].open()
        syncs = await pool.all_serving()
        assert [sync.policy_version for sync in syncs] == ["newest", "newest"]

    with_two_doors(gpt2_server, policy, scenario, max_failures=0)


def test_no_server_at_all_is_an_error_at_once(gpt2_server: ManagedServer, policy: ServedPolicy) -> None:
    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        for door in doors:
            door.close()
        with pytest.raises(ServerFailure, match=f"{doors[0].port}.*Cannot connect"):
            await pool.serve(policy)

    with_two_doors(gpt2_server, policy, scenario)


def test_servers_come_and_go_while_a_run_samples(
    gpt2_server: ManagedServer, policy: ServedPolicy, model: PreTrainedModel
) -> None:
    """The first server leaves with requests in flight, which it still answers; a third one joins."""

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        tasks = start(pool, 4)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert replicas[0].in_flight == [2]
        leaving = pool.dismiss(replicas[0])
        joining = through(doors[0], gpt2_server)
        await pool.admit(joining)
        assert_sampled_from(model, await asyncio.gather(*tasks))
        await leaving
        assert pool.replicas == (replicas[1], joining)
        await pool.all_serving()
        tasks = start(pool, 4)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0)
        assert [each.in_flight for each in (*replicas, joining)] == [[0], [2], [2]]
        assert_sampled_from(model, await asyncio.gather(*tasks))

    with_two_doors(gpt2_server, policy, scenario, max_failures=0)


def test_the_servers_are_those_of_a_file(
    gpt2_server: ManagedServer, policy: ServedPolicy, tmp_path: Path
) -> None:
    path, told = tmp_path / "servers.yaml", list[str]()

    def replica_of(address: ServerAddress) -> Replica:
        return Replica(client(address.url, gpt2_server))

    async def scenario(pool: ServerPool, replicas: list[Replica], doors: list[Proxy]) -> None:
        for replica in replicas:
            await pool.dismiss(replica)
        listed = ListedServers(path, pool, replica_of, told.append)
        first, second = (f"http://127.0.0.1:{door.port}" for door in doors)
        for content, expected in (
            ("", []),
            (f"- url: {first}", [first]),
            (f"- url: {second}\n- url: {first}", [first, second]),
            (f"- url: {second}", [second]),
        ):
            path.write_text(content)
            await listed.update()
            assert [each.client.url for each in pool.replicas] == expected
        await pool.all_serving()
        path.write_text("- url: a server")
        with pytest.raises(ConfigError, match="not a list of servers"):
            await listed.update()
        assert [each.client.url for each in pool.replicas] == [second]

    with_two_doors(gpt2_server, policy, scenario)
