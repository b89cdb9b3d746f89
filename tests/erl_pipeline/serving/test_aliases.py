"""Which checkpoint answers, and what becomes of calls while that changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from erl_pipeline.engines.interface import (
    POLICY,
    Generation,
    GenerationRequest,
    OutputHead,
    Probe,
    ServedAdapter,
    ServedCheckpoint,
)
from erl_pipeline.engines.vllm.model_servers import ModelServers
from erl_pipeline.engines.vllm.settings import VllmEngineConfig
from erl_pipeline.serving.aliases import Canary
from erl_pipeline.serving.policies import OpenedPolicy
from storage.errors import InputError
from storage.serving.aliases import AliasChange, alias_file
from storage.serving.traffic import ServedTurn
from tests.erl_pipeline.episodes.test_dialogue import said
from tests.erl_pipeline.serving.served import TOKENIZER, Scripted, Served


def test_a_canary_is_a_share_of_users_always_the_same_ones(tmp_path: Path) -> None:
    small, large = Canary.parse("candidate:0.1"), Canary.parse("candidate:0.3")
    names = [f"user {number}" for number in range(2000)]
    in_small = {name for name in names if small.answers(name)}
    in_large = {name for name in names if large.answers(name)}
    assert in_small < in_large
    # Three standard deviations of a share of 2,000.
    assert abs(len(in_small) / 2000 - 0.1) < 3 * (0.1 * 0.9 / 2000) ** 0.5
    assert abs(len(in_large) / 2000 - 0.3) < 3 * (0.3 * 0.7 / 2000) ** 0.5
    for wrong in ("candidate", "candidate:x", ":0.1", "candidate:1.5"):
        with pytest.raises(InputError, match="allowed is ALIAS:SHARE"):
            Canary.parse(wrong)


def test_users_of_the_share_are_answered_by_the_canary_once_there_is_one(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        names = [f"user {number}" for number in range(40)]
        for name in names:
            assert (await served.chat("hi", metadata={"user": name}))[0].startswith("one")
        await served.promote("two", "candidate")
        answered = [(await served.chat("hi", metadata={"user": name}))[0].split()[0] for name in names]
        again = [(await served.chat("hi", metadata={"user": name}))[0].split()[0] for name in names]
        assert answered == again
        assert set(answered) == {"one", "two"}
        assert {alias["checkpoint"] for alias in (await served.health())["aliases"].values()} == {
            "one",
            "two",
        }

    Scripted(tmp_path, canary=Canary("candidate", 0.5)).use(use)


def test_calls_that_are_not_stored_and_name_nobody_are_divided_too(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        await served.promote("two", "candidate")
        answered = [(await served.chat("hi", store=False))[0].split()[0] for _ in range(40)]
        assert set(answered) == {"one", "two"}

    Scripted(tmp_path, canary=Canary("candidate", 0.5)).use(use)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_change_is_followed_and_an_episode_under_way_begins_a_new_token_sequence(
    tmp_path: Path, in_place: bool
) -> None:
    """A call that was under way ends with the checkpoint that it began with."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        if checkpoint == "one" and not begun.is_set():
            begun.set()
            await go_on.wait()
        return said(TOKENIZER, f"{checkpoint}<|im_end|>")

    async def use(served: Served) -> None:
        early = asyncio.create_task(served.chat("hi"))
        await begun.wait()
        changing = asyncio.create_task(served.promote("two"))
        while not (in_place or served.told):
            await asyncio.sleep(0.005)
        late = asyncio.create_task(served.chat("late"))
        if not in_place:
            assert (await late)[0] == "two"
        go_on.set()
        assert (await early)[0] == "one"
        await changing
        assert (await late)[0] == "two"
        answer, headers = await served.chat("hi", "one", "more")
        assert (answer, headers["x-erl-checkpoint"]) == ("two", "two")
        assert headers["x-erl-episode-id"] == (await early)[1]["x-erl-episode-id"]
        turns = [record for record in await served.logged() if isinstance(record, ServedTurn)]
        assert turns[-1].after is None
        assert len(turns[-1].messages) == 3
        assert (await served.chat("hi", "one", "more", "two", "on"))[0] == "two"
        last = (await served.logged())[-1]
        assert isinstance(last, ServedTurn)
        assert last.after == turns[-1].turn_id

    Scripted(tmp_path, says=says, in_place=in_place).use(use)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_checkpoint_that_cannot_be_opened_is_not_served(tmp_path: Path, in_place: bool) -> None:
    scripted = Scripted(tmp_path, in_place=in_place)

    async def use(served: Served) -> None:
        await served.promote("broken")
        assert (await served.chat("hi"))[0].startswith("one")
        assert "broken cannot be opened, and nothing changes" in served.told[0]
        assert (await served.health())["aliases"]["production"]["failure"]
        await served.service.aliases.follow()
        await served.promote("two")
        assert (await served.chat("hi"))[0].startswith("two")
        assert not (await served.health())["aliases"]["production"]["failure"]

    scripted.use(use)
    # An engine that holds one checkpoint has to be given the one before again.
    assert scripted.opened == ["one", "broken", *(["one"] if in_place else []), "two"]


def test_health_says_what_cannot_be_opened_as_long_as_it_is_so(tmp_path: Path) -> None:
    """A change that was taken back, and a canary that nothing has answered for yet."""

    async def use(served: Served) -> None:
        await served.promote("broken")
        assert (await served.health())["aliases"]["production"]["failure"]
        await served.promote("one")
        assert not (await served.health())["aliases"]["production"]["failure"]
        await served.promote("broken", alias="candidate")
        assert (await served.health())["aliases"]["candidate"]["failure"]

    Scripted(tmp_path, canary=Canary("candidate", 0.5)).use(use)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("checkpoint", "says"), [("too large", "CUDA out of memory"), ("larger than memory", "MemoryError")]
)
def test_a_checkpoint_that_does_not_fit_into_memory_is_not_served(
    tmp_path: Path, in_place: bool, checkpoint: str, says: str
) -> None:
    async def use(served: Served) -> None:
        watching = asyncio.create_task(served.service.aliases.watch())
        await served.promote(checkpoint)
        assert (await served.chat("hi"))[0].startswith("one")
        assert f"cannot be opened, and nothing changes: {says}" in served.told[0]
        assert (await served.health())["aliases"]["production"]["failure"] == says
        assert not watching.done()
        watching.cancel()

    Scripted(tmp_path, in_place=in_place).use(use)


def test_an_adapter_does_not_take_the_place_of_a_whole_model_on_a_running_server(tmp_path: Path) -> None:
    """vLLM's servers are started for one of the two. What is served stays."""
    config, folder = VllmEngineConfig(), tmp_path / "vllm"
    servers = ModelServers(POLICY, config, lambda _: None, None, 0, folder, None, print)

    class OnServers(Scripted):
        def open(self, change: AliasChange) -> OpenedPolicy:
            adapter = ServedAdapter(None, 8, ("q_proj",)) if change.checkpoint_id == "adapter" else None
            head, probe = OutputHead("lm_head.weight"), Probe((), (), "float32", np.zeros((1, 8)))
            checkpoint = ServedCheckpoint(change.checkpoint_id, tmp_path, head, probe, frozenset(), adapter)
            if servers.served_id != checkpoint.checkpoint_id:
                servers.prepare(checkpoint)
                servers.finish(checkpoint)
            return super().open(change)

    async def use(served: Served) -> None:
        watching = asyncio.create_task(served.service.aliases.watch())
        await served.promote("adapter")
        assert servers.served_id == "one"
        assert (await served.chat("hi"))[0].startswith("one")
        failure = (await served.health())["aliases"]["production"]["failure"]
        assert failure.endswith("all adapters, or none is; start the program again to serve adapter")
        assert not watching.done()
        watching.cancel()

    OnServers(tmp_path, in_place=True).use(use)


def test_aliases_that_cannot_be_read_stay_as_they_are(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        await served.promote("two")
        path = alias_file(served.store, "lake")
        path.write_bytes(path.read_bytes().replace(b"two", b"six"))
        await served.service.aliases.follow()
        assert "put it back from a copy" in served.told[-1]
        assert (await served.chat("hi"))[0].startswith("two")

    Scripted(tmp_path).use(use)


def test_an_engine_that_has_given_up_is_started_again(tmp_path: Path) -> None:
    """Until then calls get an error that clients try again."""
    scripted = Scripted(tmp_path, in_place=True)

    async def use(served: Served) -> None:
        scripted.given_up.add("one")
        messages = [{"role": "user", "content": "hi"}]
        status, body, answer = await served.post("/v1/chat/completions", {"messages": messages})
        assert (status, body["error"]["code"]) == (503, "engine_failed")
        assert "Retry-After" in answer.headers
        await served.service.aliases.follow()
        assert (await served.chat("hi"))[0].startswith("one")
        assert scripted.opened == ["one", "one"]
        assert (await served.health())["aliases"]["production"]["failure"] == ""
        assert len(await served.logged()) == 1

    scripted.use(use)
