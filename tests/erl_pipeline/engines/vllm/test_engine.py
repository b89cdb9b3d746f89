import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import POLICY, Generation, GenerationRequest, ServedCheckpoint
from erl_pipeline.engines.probe import make_probe
from erl_pipeline.engines.vllm.client import VllmClient
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.weight_sync import ServedPolicy, WeightSync, compare, sync_weights
from erl_pipeline.episodes.play import ConcurrentSampling, play_episodes
from storage.errors import EngineError, Interrupted
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.engines.vllm.server_processes import engine_process, no_more_memory
from tests.erl_pipeline.engines.vllm.small_policies import (
    CONTEXT,
    END,
    ENGINE,
    VOCABULARY,
    logprobs_of,
    save,
    served,
    tied_llama,
    train_a_little,
)
from tests.erl_pipeline.episodes.script import TASK, limits, setup

pytestmark = pytest.mark.vllm

CONFIG = ENGINE.model_copy(
    update={
        "lifecycle": "per_stage",
        "transfer": "shared_memory",
        "progress_seconds": 20.0,
        "max_failures": 1,
        "arguments": (*ENGINE.arguments, "--max-num-batched-tokens=256"),
    }
)
"""One engine for all tests here, since each start of a server takes long; faults are injected one after
another."""


told: list[str] = []
"""What the engine has warned of."""


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    """The policy that is served: it has tied embeddings, and its distribution is far from a random model's
    uniform one."""
    model = tied_llama()
    train_a_little(model)
    return model


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, model: PreTrainedModel) -> Iterator[VllmEngine]:
    folder: Path = tmp_path_factory.mktemp("engine")
    with VllmEngine(CONFIG, folder / "vllm", environment={}, warn=told.append) as engine:
        (sync,) = engine.serve(POLICY, served(model, "policy-1", folder))
        assert sync.method == "restart"
        assert sync.difference.maximum < 1e-4
        yield engine


def request(seed: int, **changes: Any) -> GenerationRequest:
    stream = random.Random(seed)
    prompt = tuple(stream.randrange(4, VOCABULARY) for _ in range(stream.randrange(3, 12)))
    return replace(GenerationRequest(prompt, 12, 1.0, seed, str(seed)), **changes)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_log_probabilities_are_the_trainers_after_temperature(
    engine: VllmEngine, model: PreTrainedModel, temperature: float
) -> None:
    requests = [request(seed, temperature=temperature) for seed in range(8)]
    for asked, answer in zip(requests, engine.generate(requests), strict=True):
        expected = logprobs_of(model, asked.prompt_token_ids, answer.token_ids, temperature)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_temperature_zero_takes_the_most_probable_token(engine: VllmEngine, model: PreTrainedModel) -> None:
    asked = request(1, temperature=0.0, max_new_tokens=1)
    (answer,) = engine.generate([asked])
    every = [logprobs_of(model, asked.prompt_token_ids, [token])[0] for token in range(VOCABULARY)]
    assert answer.token_ids == (every.index(max(every)),)
    assert answer.logprobs == pytest.approx([max(every)], abs=1e-4)


def test_a_seed_gives_the_same_tokens_and_another_seed_others(engine: VllmEngine) -> None:
    first, again, other = engine.generate([request(5), request(5), replace(request(5), seed=6)])
    assert first.token_ids == again.token_ids
    assert first.token_ids != other.token_ids


def test_an_end_token_stops_and_is_part_of_the_answer(engine: VllmEngine) -> None:
    answers = engine.generate([request(seed, max_new_tokens=100) for seed in range(30)])
    stopped = [answer for answer in answers if answer.finish_reason == "stop"]
    assert stopped
    assert all(answer.token_ids.index(END) == len(answer.token_ids) - 1 for answer in stopped)
    assert all(END not in answer.token_ids for answer in answers if answer.finish_reason == "length")
    assert all(len(answer.logprobs) == len(answer.token_ids) for answer in answers)


def test_a_full_context_truncates_the_answer(engine: VllmEngine) -> None:
    nearly_full = request(0, prompt_token_ids=(5,) * (CONTEXT - 2))
    full = request(0, prompt_token_ids=(5,) * CONTEXT)
    nearly, none = engine.generate([nearly_full, full])
    assert len(nearly.token_ids) <= 2
    assert (none.token_ids, none.logprobs, none.finish_reason) == ((), (), "length")


def test_more_prompt_tokens_at_once_than_one_step_takes(engine: VllmEngine, model: PreTrainedModel) -> None:
    """32 prompts of 100 tokens; one step of the server takes 256."""
    requests = [request(seed, prompt_token_ids=(4 + seed,) * 100) for seed in range(32)]
    for asked, answer in zip(requests, engine.generate(requests), strict=True):
        expected = logprobs_of(model, asked.prompt_token_ids, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_token_outside_the_vocabulary_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(EngineError, match="token id 44, but policy policy-1 has a vocabulary of 44"):
        engine.generate([request(0, prompt_token_ids=(5, VOCABULARY))])


def test_tied_weights_reach_the_running_server(engine: VllmEngine, tmp_path: Path) -> None:
    model = tied_llama()
    old = make_probe(model)
    engine.serve(POLICY, served(model, "old", tmp_path))
    train_a_little(model)
    changed = [logprobs_of(model, ids[:1], ids[1:]) for ids in old.token_ids]
    assert compare(old, changed).mean > 0.1

    (sync,) = engine.serve(POLICY, served(model, "new", tmp_path))

    assert sync.method == "reload"
    assert sync.difference.maximum < 1e-4
    asked = request(1)
    (answer,) = engine.generate([asked])
    assert answer.logprobs == pytest.approx(
        logprobs_of(model, asked.prompt_token_ids, answer.token_ids), abs=1e-4
    )


def test_samples_after_a_transfer_are_those_after_a_reload(engine: VllmEngine, tmp_path: Path) -> None:
    model = tied_llama()
    other = served(model, "other", tmp_path)
    train_a_little(model)
    wanted = served(model, "wanted", tmp_path)
    in_memory = replace(wanted, in_memory=in_parts(model, tmp_path / "memory"))

    def samples(checkpoint: ServedCheckpoint, method: str) -> list[Generation]:
        engine.serve(POLICY, other)
        (sync,) = engine.serve(POLICY, checkpoint)
        assert (sync.method, sync.policy_version, sync.not_transferred) == (method, "wanted", "")
        # One at a time, so that rounding does not depend on a batch.
        return [engine.generate([request(seed)])[0] for seed in range(4)]

    assert samples(in_memory, "transfer") == samples(wanted, "reload")


def test_without_a_whole_transfer_the_files_are_read(engine: VllmEngine, tmp_path: Path) -> None:
    """The weights in memory are gone, one of them is missing, and they are those of another policy."""
    model = tied_llama()
    old = in_parts(model, tmp_path / "old")
    train_a_little(model)
    lacking = save(model, tmp_path / "lacking")
    weights = load_file(lacking / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, lacking / "model.safetensors")
    for folder, why in {
        tmp_path / "gone": "/update_weights answered 500",
        lacking: "/update_weights answered 500",
        old: "it did not serve the policy after the transfer",
    }.items():
        told.clear()
        wanted = replace(served(model, f"not-{folder.name}", tmp_path), in_memory=folder)
        (sync,) = engine.serve(POLICY, wanted)
        assert sync.method == "reload"
        assert sync.difference.maximum < 1e-4
        assert why in sync.not_transferred
        (message,) = told
        assert f"did not take policy not-{folder.name} from memory, but by a reload: " in message
        asked = request(1)
        (answer,) = engine.generate([asked])
        assert answer.logprobs == pytest.approx(
            logprobs_of(model, asked.prompt_token_ids, answer.token_ids), abs=1e-4
        )


def in_parts(model: PreTrainedModel, folder: Path) -> Path:
    """The model's weights in several files."""
    model.save_pretrained(folder, max_shard_size="200KB")
    return folder


def test_a_stale_head_is_noticed(engine: VllmEngine, tmp_path: Path) -> None:
    """The checkpoint has no separate head: a running server that reads it as it is keeps the old head."""
    model = tied_llama()
    engine.serve(POLICY, served(model, "before", tmp_path))
    train_a_little(model)
    checkpoint = save(model, tmp_path / "tied")
    policy = ServedPolicy("tied", checkpoint, make_probe(model), "float32")
    (server,) = engine.servers()

    async def exchange() -> WeightSync:
        async with VllmClient(server.url, server.api_key, frozenset({END}), 120.0) as client:
            return await sync_weights(client, None, policy)

    with pytest.raises(EngineError, match="does not serve policy tied after a reload"):
        asyncio.run(exchange())


def test_a_server_of_one_stage_ends_when_the_trainer_works(
    engine: VllmEngine, model: PreTrainedModel, tmp_path: Path
) -> None:
    checkpoint = served(model, "of-one-stage", tmp_path)
    engine.serve(POLICY, checkpoint)
    (server,) = engine.servers()
    (first,) = engine.generate([request(3)])
    engine.offload()
    assert not server.running
    with pytest.raises(EngineError, match="serves no checkpoint of model policy"):
        engine.generate([request(3)])
    (sync,) = engine.serve(POLICY, checkpoint)
    assert sync.method == "restart"
    (again,) = engine.generate([request(3)])
    assert again.token_ids == first.token_ids


def test_weights_of_other_shapes_start_the_server_anew(engine: VllmEngine, tmp_path: Path) -> None:
    (sync,) = engine.serve(POLICY, served(wide_llama(), "wide", tmp_path))
    assert sync.method == "restart"
    assert sync.difference.maximum < 1e-4


def test_a_hanging_server_loses_no_episode_and_memory_that_runs_out_then_stops_the_run(
    engine: VllmEngine,
) -> None:
    """The server hangs when the first of 24 episodes is over: it is alive and answers nothing, and only its
    standstill shows it. It restarts and the others continue. Later it can allocate no more memory.
    A step over many tokens needs more: half a megabyte per token in the first layer of the wide model that it
    serves, which is more than it has kept from earlier steps."""
    hanging = engine_process(engine.servers()[0])
    rows = run_shard(engine, lambda: os.kill(hanging, signal.SIGSTOP))
    assert_sampled_from(wide_llama(), rows)
    assert engine_process(engine.servers()[0]) != hanging
    with pytest.raises(EngineError) as stopped:
        run_shard(engine, lambda: no_more_memory(engine_process(engine.servers()[0])))
    assert "more than 1 failures (max_failures)" in str(stopped.value)
    assert "read and sampled no token for 20 s (progress_seconds)" in str(stopped.value)
    assert "can't allocate memory" in str(stopped.value)
    assert "last log lines" in str(stopped.value)


def wide_llama() -> PreTrainedModel:
    return tied_llama(layers=1, width=131072)


def test_a_stop_ends_the_wait_for_a_starting_server(tmp_path: Path, model: PreTrainedModel) -> None:
    stop = threading.Event()
    engine = VllmEngine(ENGINE, tmp_path / "vllm", {}, stop, lambda seconds, line: stop.set())
    with engine, pytest.raises(Interrupted):
        engine.serve(POLICY, served(model, "policy", tmp_path))
    (server,) = engine.servers()
    assert not server.running


def test_two_replicas_are_both_proven_and_one_that_dies_is_made_up_for(
    tmp_path: Path, model: PreTrainedModel
) -> None:
    """The first replica has the prompts of the group when it dies; the other continues with them."""
    two = ENGINE.model_copy(update={"replicas": 2})
    with VllmEngine(two, tmp_path / "vllm", environment={}) as engine:
        assert engine.serve(POLICY, served(model, "policy-1", tmp_path))[0].method == "restart"
        syncs = engine.all_serving()
        assert [sync.method for sync in syncs] == ["restart", "restart"]
        assert max(sync.difference.maximum for sync in syncs) < 1e-4
        rows = run_shard(engine, lambda: os.kill(engine_process(engine.servers()[0]), signal.SIGKILL))
    assert_sampled_from(model, rows)
    assert sorted(path.name for path in (tmp_path / "vllm" / POLICY).glob("*.log")) == [
        "server.log",
        "server_2.log",
    ]


def run_shard(engine: VllmEngine, strike: Callable[[], None]) -> list[Trajectory]:
    """The rows of 24 episodes, 8 at a time, each of which is returned once; `strike` is called after the
    first."""
    ended: list[str] = []

    def strike_once(rows: list[Trajectory]) -> None:
        ended.append(rows[0].episode_id)
        if len(ended) == 1:
            strike()

    first_attempts = replace(setup(max_revisions=0), limits=limits(context_length=CONTEXT))
    rows = play_episodes(
        first_attempts, [TASK], range(24), ConcurrentSampling(engine, max_in_flight=8), on_episode=strike_once
    ).rows

    assert [row.sample_index for row in rows] == list(range(24))
    assert sorted(ended) == sorted(row.episode_id for row in rows)
    assert len(set(ended)) == 24
    return rows


def assert_sampled_from(model: PreTrainedModel, rows: list[Trajectory]) -> None:
    for row in rows:
        expected = logprobs_of(model, row.prompt_token_ids, row.response_token_ids)
        masked = [logprob * mask for logprob, mask in zip(expected, row.response_mask, strict=True)]
        assert row.behaviour_logprobs == pytest.approx(masked, abs=1e-4)
