"""A run that trains an adapter and samples from it on a vLLM server: what was sampled, what that server then
does, and a second run with the same configuration that is killed in the middle of its rollouts."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
import yaml

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.config.plugins import operational_part
from erl_pipeline.engines.interface import POLICY, GenerationRequest, ServedAdapter, ServedCheckpoint
from erl_pipeline.engines.probe import make_probe
from erl_pipeline.engines.probe_file import PROBE_FILE, read_facts
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.weight_sync import (
    ServedPolicy,
    WeightSync,
    compare,
    prove_adapter,
    sync_weights,
)
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.runner import InProcessRunner
from erl_pipeline.plan.stage import Listener, Resources, WorkerSettings
from erl_pipeline.policies.adapter_names import last_parts
from erl_pipeline.policies.adapters import write_adapter
from erl_pipeline.policies.checkpoints import load_checkpoint, stored_parts, weights_settings
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.runs.driver import OpenRun, open_run
from erl_pipeline.runs.planning import plan_for
from storage.artifacts.store import ArtifactStore
from storage.errors import EngineError
from storage.runs.run import RunStore
from storage.tables.trajectories import read_trajectories
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.engines.vllm.small_policies import ENGINE, logprobs_of
from tests.erl_pipeline.runs.adapted_runs import config, save_base
from tests.integration.killing import start_training, train_to_the_end
from tests.integration.runs import artifact_hashes, trajectory_ids
from tests.waiting import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@dataclass(frozen=True)
class Adapted:
    """A run after its two iterations, whose server still runs."""

    config: Path
    opened: OpenRun
    engine: VllmEngine

    @property
    def checkpoints(self) -> list[str]:
        """Artifact ids of the run's checkpoints, the base first."""
        return [entry.artifact_id for entry in self.opened.stages() if entry.kind == "checkpoint"]

    def load(self, checkpoint_id: str) -> LoadedPolicy:
        """The policy of one of these checkpoints."""
        return load_checkpoint(
            stored_parts(self.opened.store, checkpoint_id), weights_settings(self.opened.config)
        )

    def served(self, policy: LoadedPolicy, name: str, adapter: Path | None) -> ServedCheckpoint:
        """The policy in the form that the engine gets, with its adapter in the folder `adapter`."""
        base = stored_parts(self.opened.store, self.checkpoints[-1]).base_folder
        facts = read_facts(base.parent / PROBE_FILE)
        return ServedCheckpoint(
            name,
            base,
            facts.head,
            make_probe(policy.model),
            policy.eos_token_ids,
            ServedAdapter(adapter, 4, last_parts(facts.linear_layers)),
        )


def write_config(folder: Path) -> Path:
    """The configuration of a small run that samples one sequence at a time from a server of its own."""
    engine = ENGINE.model_copy(update={"max_in_flight": 1})
    settings = config(save_base(folder / "base"), engine=engine.model_dump(mode="json"))
    path = folder / "adapted.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return path


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    """Trained with resources that outlive the run."""
    folder = tmp_path_factory.mktemp("adapted")
    path, listener, stop = write_config(folder), Listener(), threading.Event()
    loaded = load_config(path)
    with open_run(loaded, str(folder / "store"), listener, stop) as opened:
        worker = WorkerSettings(
            opened.store.uri, opened.run.name, 1, operational_part("engines", loaded.engine)
        )
        with Resources(worker, stop) as resources:
            execution = Execution(
                store=opened.store,
                runner=InProcessRunner(resources, listener),
                worker=worker,
                resources=ResourcesConfig(),
                listener=listener,
                record=opened.record,
                stopped=stop.is_set,
            )
            execute(plan_for(opened.store.uri, opened.run, loaded, loaded.iterations), execution)
            kept = resources.kept("engine")
            assert isinstance(kept, VllmEngine)
            yield Adapted(path, opened, kept)


def client_of(engine: VllmEngine) -> VllmClient:
    (server,) = engine.servers()
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


def further_trained(adapted: Adapted, folder: Path) -> LoadedPolicy:
    """The last policy after some steps at a high learning rate; its adapter is in `folder`."""
    policy = adapted.load(adapted.checkpoints[-1])
    weights = [weight for weight in policy.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=0.02)
    for seed in range(4):
        tokens = torch.randint(5, 30, (8, 16), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        policy.model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    write_adapter(policy.model, folder)
    return policy


def test_every_rollout_was_sampled_from_the_adapter_of_its_checkpoint(adapted: Adapted) -> None:
    """Stored log-probabilities are those of base and adapter in the trainer, and not those of the base."""
    opened, (base_id, _, second_id, *_) = adapted.opened, adapted.checkpoints
    for iteration, policy_id in ((1, base_id), (2, second_id)):
        shards = [
            opened.store.open(entry.artifact_id).path("trajectories.parquet")
            for entry in opened.stages()
            if (entry.kind, entry.iteration) == ("trajectories", iteration)
        ]
        policy, base = adapted.load(policy_id), adapted.load(base_id)
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


def test_a_run_killed_in_a_shard_ends_its_server_and_goes_on_to_the_same_bytes(
    adapted: Adapted, tmp_path: Path
) -> None:
    """Killed while the second shard of an iteration is sampled; the first is kept."""
    store = tmp_path / "store"
    process = start_training(adapted.config, store)

    def sampled() -> bool:
        return process.exitcode is not None or any((store / "artifacts").glob("rollout_shard/*"))

    wait_for("the first shard", sampled, patience=250.0, interval=0.001)
    assert process.pid is not None
    servers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert servers
    _, alive = psutil.wait_procs(servers, timeout=30)
    assert alive == []
    kept = artifact_hashes(store, "adapted")

    train_to_the_end(adapted.config, store)

    whole = artifact_hashes(store, "adapted")
    assert kept.items() <= whole.items()
    assert whole == artifact_hashes(adapted.opened.store.uri, "adapted")
    ids = trajectory_ids(store, "adapted")
    assert len(set(ids)) == len(ids) > 0
    artifacts, run = ArtifactStore(str(store)), RunStore(str(store)).open("adapted")
    assert verify_run(artifacts, run).problems == []
    assert {artifacts.open(entry.artifact_id).manifest.determinism for entry in run.stages()} == {"bytes"}
    shutil.rmtree(store)


def test_a_new_adapter_is_loaded_and_the_old_one_is_gone(adapted: Adapted, tmp_path: Path) -> None:
    last = adapted.checkpoints[-1]
    engine = adapted.engine
    assert adapters_of(engine) == [last]
    old = make_probe(adapted.load(last).model)
    policy = further_trained(adapted, tmp_path)

    (sync,) = engine.serve(POLICY, adapted.served(policy, "further", tmp_path))

    assert sync.method == "load"
    assert sync.difference.maximum < 1e-3
    assert adapters_of(engine) == ["further"]
    answers_are_of(engine, policy)
    now = [logprobs_of(policy.model, ids[:1], ids[1:]) for ids in old.token_ids]
    assert compare(old, now).mean > 0.1


def test_an_adapter_that_is_not_the_trainers_is_noticed(adapted: Adapted, tmp_path: Path) -> None:
    """The server gets the adapter of a checkpoint; the probe is of a policy that was trained further."""
    engine = adapted.engine
    policy = further_trained(adapted, tmp_path)
    parts = stored_parts(adapted.opened.store, adapted.checkpoints[-1])
    wrong = adapted.served(policy, "wrong", parts.adapter_folder)
    probe = wrong.probe
    target = ServedPolicy("wrong", parts.base_folder, probe, "float32", wrong.adapter)

    async def exchange() -> WeightSync:
        async with client_of(engine) as client:
            # Requests that name no adapter are answered by the base.
            with pytest.raises(EngineError, match=r"does not apply the adapter .* shows -?0\.00"):
                await prove_adapter(client, target)
            client.adapter = "never loaded"
            with pytest.raises(ServerFailure, match="has no adapter never loaded"):
                await client.score(probe.token_ids[0])
            return await sync_weights(client, None, target)

    with pytest.raises(EngineError, match="does not serve policy wrong after a load"):
        asyncio.run(exchange())


def test_a_server_that_died_gets_the_adapter_again(adapted: Adapted, tmp_path: Path) -> None:
    policy = further_trained(adapted, tmp_path)
    engine = adapted.engine
    engine.serve(POLICY, adapted.served(policy, "further-again", tmp_path))
    (server,) = engine.servers()
    server.end()

    answers_are_of(engine, policy)

    assert adapters_of(engine) == ["further-again"]
