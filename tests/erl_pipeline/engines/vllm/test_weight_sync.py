from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from erl_pipeline.engines.interface import POLICY, PROBE_TEMPERATURE, GenerationRequest, ServedAdapter
from erl_pipeline.engines.probe import make_probe, output_head
from erl_pipeline.engines.vllm.client import ServerFailure, VllmClient
from erl_pipeline.engines.vllm.engine import VllmEngine
from erl_pipeline.engines.vllm.server import ManagedServer
from erl_pipeline.engines.vllm.serving_copy import write_serving_copy
from erl_pipeline.engines.vllm.weight_sync import (
    ServedPolicy,
    adapter_arguments,
    applied_share,
    compare,
    sync_weights,
)
from storage.errors import ConfigError, EngineError
from tests.erl_pipeline.engines.vllm.small_policies import (
    CONTEXT,
    END,
    ENGINE,
    logprobs_of,
    save,
    served,
    train_a_little,
    untied_gpt2,
)

pytestmark = pytest.mark.vllm
Result = TypeVar("Result")


def with_client(server: ManagedServer, work: Callable[[VllmClient], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with VllmClient(server.url, server.api_key, frozenset({END}), progress_seconds=120.0) as client:
            return await work(client)

    return asyncio.run(run())


def policy(model: PreTrainedModel, version: str, folder: Path) -> ServedPolicy:
    checkpoint = save(model, folder / f"checkpoint-{version}")
    copy = write_serving_copy(checkpoint, folder / f"copy-{version}", output_head(model, checkpoint))
    return ServedPolicy(version, copy, make_probe(model), "float32")


def test_untied_weights_reach_a_running_server(gpt2_server: ManagedServer, tmp_path: Path) -> None:
    model = untied_gpt2()
    old = policy(model, "untrained", tmp_path)
    train_a_little(model)
    new = policy(model, "trained", tmp_path)

    async def exchange(client: VllmClient) -> None:
        assert (await sync_weights(client, None, old)).difference.maximum < 1e-4
        # Long enough to fill a block of the prefix cache with keys and values of the old policy.
        request = GenerationRequest((7, 8, 9, 10) * 20, 4, 1.0, 0, "conversation")
        await client.generate(request, "untrained", CONTEXT)

        sync = await sync_weights(client, None, new)

        assert sync.method == "reload"
        assert sync.difference.maximum < 1e-4
        after = [await client.score(ids) for ids in old.probe.token_ids]
        assert compare(old.probe, after).mean > 0.1
        answer = await client.generate(request, "trained", CONTEXT)
        expected = logprobs_of(model, request.prompt_token_ids, answer.token_ids)
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
        with pytest.raises(ServerFailure, match=r"sampled from policy \['trained'\], not from untrained"):
            await client.generate(request, "untrained", CONTEXT)

    with_client(gpt2_server, exchange)


def test_another_policy_than_the_trainers_is_not_served(gpt2_server: ManagedServer, tmp_path: Path) -> None:
    model = untied_gpt2()
    right = policy(model, "right", tmp_path)
    train_a_little(model)
    wrong = replace(right, policy_version="wrong", probe=make_probe(model))
    with pytest.raises(EngineError, match="does not serve policy wrong after a reload"):
        with_client(gpt2_server, lambda client: sync_weights(client, None, wrong))


def test_weights_that_are_no_numbers_are_not_served(gpt2_server: ManagedServer, tmp_path: Path) -> None:
    model = untied_gpt2()
    sound = make_probe(model)
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    checkpoint = save(model, tmp_path / "checkpoint")
    copy = write_serving_copy(checkpoint, tmp_path / "copy", output_head(model, checkpoint))
    broken = ServedPolicy("broken", copy, sound, "float32")
    with pytest.raises(EngineError, match=r"does not serve policy broken .* are not numbers"):
        with_client(gpt2_server, lambda client: sync_weights(client, None, broken))


def test_a_weight_that_was_not_read_is_noticed_though_it_had_not_changed(
    gpt2_server: ManagedServer, tmp_path: Path
) -> None:
    complete = policy(untied_gpt2(), "complete", tmp_path)
    lacking = tmp_path / "lacking"
    shutil.copytree(complete.folder, lacking)
    weights = load_file(lacking / "model.safetensors")
    del weights["transformer.ln_f.weight"]
    save_file(weights, lacking / "model.safetensors")

    async def exchange(client: VllmClient) -> None:
        await sync_weights(client, None, complete)
        with pytest.raises(EngineError, match="does not serve policy lacking"):
            await sync_weights(client, None, replace(complete, policy_version="lacking", folder=lacking))

    with_client(gpt2_server, exchange)


def test_each_copy_of_a_server_must_prove_its_weights(gpt2_server: ManagedServer, tmp_path: Path) -> None:
    """The server has one copy of the model. Asked for a proof of a second one, it says that there is none."""
    version = policy(untied_gpt2(), "in-two-copies", tmp_path)

    async def exchange() -> None:
        async with VllmClient(gpt2_server.url, gpt2_server.api_key, frozenset({END}), 120.0, copies=2) as two:
            await sync_weights(two, None, version)

    with pytest.raises((EngineError, ServerFailure), match="data_parallel_rank 1 is out of range"):
        asyncio.run(exchange())


def test_a_sleeping_server_answers_nothing_and_a_sync_wakes_it(
    gpt2_server: ManagedServer, tmp_path: Path
) -> None:
    """The CPU build frees no memory, but it lets requests wait as on a GPU."""
    model = untied_gpt2()
    old = policy(model, "before-sleep", tmp_path)
    train_a_little(model)
    new = policy(model, "after-sleep", tmp_path)
    request = GenerationRequest((7, 8, 9), 4, 1.0, 0, "conversation")

    async def exchange(client: VllmClient) -> None:
        await sync_weights(client, None, old)
        await client.sleep(2)
        assert await client.sleeping()
        waiting = asyncio.create_task(client.generate(request, "after-sleep", CONTEXT))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        sync = await sync_weights(client, None, new)

        assert sync.difference.maximum < 1e-4
        assert not await client.sleeping()
        answer = await client.generate(request, "after-sleep", CONTEXT)
        assert answer.logprobs == pytest.approx(logprobs_of(model, (7, 8, 9), answer.token_ids), abs=1e-4)

    with_client(gpt2_server, exchange)


def test_a_server_that_reports_another_distribution_than_it_samples_from_is_refused(
    gpt2_server: ManagedServer, tmp_path: Path
) -> None:
    """The probe has the distribution before temperature, which a server with `raw_logprobs` reports."""
    model = untied_gpt2()
    train_a_little(model)
    target = policy(model, "raw", tmp_path)
    raw = target.probe.hot_logprobs * PROBE_TEMPERATURE
    raw -= np.log(np.exp(raw).sum(axis=1, keepdims=True))
    other = replace(target, probe=replace(target.probe, hot_logprobs=raw))
    with pytest.raises(EngineError, match=r"does not report the distribution .* processed_logprobs"):
        with_client(gpt2_server, lambda client: sync_weights(client, None, other))


def test_an_engine_serves_one_policy_after_another(gpt2_server: ManagedServer, tmp_path: Path) -> None:
    """Here the run did not start the server; its key is in an environment variable."""
    address = {"url": gpt2_server.url, "api_key_variable": "SERVER_KEY"}
    config = ENGINE.model_validate({**ENGINE.model_dump(), "servers": [address]})
    model = untied_gpt2()
    request = GenerationRequest((7, 8, 9), 8, 1.0, 0, "conversation")
    with VllmEngine(config, tmp_path / "engine", {"SERVER_KEY": gpt2_server.api_key}) as engine:
        with pytest.raises(EngineError, match="serves no model policy"):
            engine.generate([request])
        for version in ("policy-1", "policy-2"):
            engine.serve(POLICY, served(model, version, tmp_path))
            (answer,) = engine.generate([request])
            assert answer.logprobs == pytest.approx(logprobs_of(model, (7, 8, 9), answer.token_ids), abs=1e-4)
            train_a_little(model)
        with pytest.raises(ConfigError, match=r"servers serve the model policy, .* samples from extractor"):
            engine.serve("extractor", served(model, "extractor-1", tmp_path))
        with pytest.raises(EngineError, match="serves no model extractor"):
            engine.generate([replace(request, model="extractor")])
    assert gpt2_server.running
    assert not engine.servers()


def test_the_share_is_1_where_the_server_changes_as_the_trainer_does_and_0_where_it_does_not() -> None:
    """Changes of 3 and 4 have a square sum of 25. A server that shows 1.5 and 4 shows (4.5 + 16) / 25.
    Rounding of 0.1 at each token gives a standard error of sqrt(2 * 0.01 / 25)."""
    trainer, rounding = np.array([[3.0, 4.0]]), np.array([[0.1, -0.1]])
    error = math.sqrt(2 * 0.01 / 25)
    assert applied_share(trainer, trainer, rounding) == pytest.approx((1.0, error))
    assert applied_share(trainer, np.zeros((1, 2)), rounding) == pytest.approx((0.0, error))
    assert applied_share(trainer, np.array([[1.5, 4.0]]), rounding) == pytest.approx((0.82, error))


def test_an_adapter_that_changes_nothing_tells_nothing() -> None:
    assert applied_share(np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2))) == (0.0, math.inf)


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (2, 8), (8, 8), (9, 16), (300, 320), (512, 512)])
def test_the_server_makes_room_for_the_next_rank_it_knows(rank: int, room: int) -> None:
    assert adapter_arguments(ServedAdapter(None, rank, ("q_proj", "v_proj"))) == [
        "--enable-lora",
        "--lora-target-modules",
        "q_proj",
        "v_proj",
        "--max-loras=1",
        f"--max-lora-rank={room}",
    ]
