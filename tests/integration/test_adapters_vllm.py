"""A run that trains an adapter and samples it from a vLLM server, and what that server then does."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from erl_pipeline.engines.interface import POLICY, GenerationRequest, ServedCheckpoint
from erl_pipeline.engines.serving import make_probe, served_checkpoint
from erl_pipeline.engines.vllm.adapters import prove_adapter
from erl_pipeline.engines.vllm.agreement import compare
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, WeightSync, sync_weights
from erl_pipeline.pipeline.context import RunContext, open_context
from erl_pipeline.pipeline.outcome import Silent
from erl_pipeline.pipeline.train import train
from erl_pipeline.policies.adapters import write_adapter
from erl_pipeline.policies.checkpoints import checkpoint_parts, load_checkpoint
from erl_pipeline.policies.pretrained import LoadedPolicy
from storage.errors import EngineError
from storage.tables.trajectories import read_trajectories
from tests.erl_pipeline.engines.vllm.small_policies import ENGINE, logprobs_of
from tests.erl_pipeline.pipeline.adapted_runs import config, save_base

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunContext]:
    """A run after its two iterations, its server still there."""
    folder = tmp_path_factory.mktemp("adapters")
    settings = config(save_base(folder / "base"), engine=ENGINE.model_dump())
    with open_context(settings, str(folder / "store"), Silent(), threading.Event()) as context:
        train(context)
        yield context


def checkpoints(context: RunContext) -> list[str]:
    """Artifact ids of the run's checkpoints, the base first."""
    stages = ("bootstrap", "update_policy", "fine_tune")
    return [entry.artifact_id for entry in context.run.stages() if entry.stage in stages]


def client_of(engine: VllmEngine) -> VllmClient:
    server = engine.server()
    assert server is not None
    return VllmClient(server.url, server.api_key, frozenset(), 120.0)


def adapters_of(engine: VllmEngine) -> list[str]:
    async def ask() -> list[str]:
        async with client_of(engine) as client:
            return await client.adapters()

    return asyncio.run(ask())


def answers_are_of(engine: VllmEngine, policy: LoadedPolicy) -> None:
    requests = [GenerationRequest((1, 3, 5 + seed), 8, 1.0, seed, str(seed)) for seed in range(8)]
    for request, answer in zip(requests, engine.generate(requests), strict=True):
        expected = logprobs_of(policy.model, request.prompt_token_ids, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=1e-3)


def further_trained(context: RunContext, folder: Path) -> LoadedPolicy:
    """The last policy after some steps at a high learning rate; its adapter is in `folder`."""
    policy = load_checkpoint(context.store, checkpoints(context)[-1], context.config)
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=0.02)
    for seed in range(4):
        tokens = torch.randint(5, 30, (8, 16), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        policy.model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    write_adapter(policy.model, folder)
    return policy


def served(context: RunContext, policy: LoadedPolicy, name: str, adapter: Path | None) -> ServedCheckpoint:
    """The policy as the engine is given it, with its adapter in the folder `adapter`."""
    base = checkpoint_parts(context.store, checkpoints(context)[-1]).base_folder
    return served_checkpoint(policy, name, base, adapter)


def test_every_rollout_was_sampled_from_the_adapter_of_its_checkpoint(context: RunContext) -> None:
    """Stored log-probabilities are those of base and adapter in the trainer, and not those of the base."""
    base_id = checkpoints(context)[0]
    for iteration, policy_id in ((1, base_id), (2, checkpoints(context)[2])):
        shards = [
            context.store.open(entry.artifact_id).path("trajectories.parquet")
            for entry in context.run.stages()
            if (entry.stage, entry.iteration) == ("rollout_shard", iteration)
        ]
        policy, base = (load_checkpoint(context.store, i, context.config) for i in (policy_id, base_id))
        away = 0.0
        for row in read_trajectories(shards):
            assert row.policy_version == policy_id
            expected, other = (
                logprobs_of(loaded.model, row.prompt_token_ids, row.response_token_ids)
                for loaded in (policy, base)
            )
            masked = [value * bit for value, bit in zip(expected, row.response_mask, strict=True)]
            assert row.behaviour_logprobs == pytest.approx(masked, abs=1e-3)
            away = max(away, *(abs(one - two) for one, two in zip(expected, other, strict=True)))
        assert (away > 0.1) == (iteration == 2)


def test_a_new_adapter_is_loaded_and_the_old_one_is_gone(context: RunContext, tmp_path: Path) -> None:
    last = checkpoints(context)[-1]
    engine = context.vllm(last)
    assert adapters_of(engine) == [last]
    old = make_probe(load_checkpoint(context.store, last, context.config).model)
    policy = further_trained(context, tmp_path)

    (sync,) = engine.serve(POLICY, served(context, policy, "further", tmp_path))

    assert sync.method == "load"
    assert sync.difference.maximum < 1e-3
    assert adapters_of(engine) == ["further"]
    answers_are_of(engine, policy)
    now = [logprobs_of(policy.model, ids[:1], ids[1:]) for ids in old.token_ids]
    assert compare(old, now).mean > 0.1


def test_an_adapter_that_is_not_the_trainers_is_noticed(context: RunContext, tmp_path: Path) -> None:
    """The server is given the adapter of a checkpoint, the probe is of a policy that was trained further."""
    engine = context.vllm(checkpoints(context)[-1])
    policy = further_trained(context, tmp_path)
    parts = checkpoint_parts(context.store, checkpoints(context)[-1])
    wrong = served(context, policy, "wrong", parts.adapter_folder)
    probe, adapter = wrong.probe, wrong.adapter
    assert adapter is not None

    async def exchange() -> WeightSync:
        async with client_of(engine) as client:
            # Requests that name no adapter are answered by the base.
            with pytest.raises(EngineError, match=r"does not apply the adapter .* shows -?0\.00"):
                await prove_adapter(client, probe, "wrong", adapter)
            client.adapter = "never loaded"
            with pytest.raises(ServerFailure, match="has no adapter never loaded"):
                await client.score(probe.token_ids[0])
            target = ServedPolicy("wrong", parts.base_folder, probe, "float32", adapter)
            return await sync_weights(client, None, target)

    with pytest.raises(EngineError, match="does not serve policy wrong after a load"):
        asyncio.run(exchange())


def test_a_server_that_died_gets_the_adapter_again(context: RunContext, tmp_path: Path) -> None:
    policy = further_trained(context, tmp_path)
    engine = context.vllm(checkpoints(context)[-1])
    engine.serve(POLICY, served(context, policy, "further-again", tmp_path))
    server = engine.server()
    assert server is not None
    server.end()

    answers_are_of(engine, policy)

    assert adapters_of(engine) == ["further-again"]
