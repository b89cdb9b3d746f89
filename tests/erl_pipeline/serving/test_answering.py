"""What clients of a served policy get, and what its log holds of it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any, cast

import openai
import pytest

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.episodes.dialogue import ChatTokenizer
from tests.erl_pipeline.episodes.test_dialogue import said
from tests.erl_pipeline.serving.served import TOKENIZER, HeldAnswers, Scripted, Served, turns

HI: Any = [{"role": "user", "content": "hi"}]
SEARCH: Any = {
    "type": "function",
    "function": {"name": "search", "description": "Find pages.", "parameters": {"type": "object"}},
}


def text_of(token_ids: tuple[int, ...]) -> str:
    return "".join(TOKENIZER.convert_ids_to_tokens(list(token_ids)))


def test_a_conversation_is_logged_as_the_tokens_that_were_sampled(tmp_path: Path) -> None:
    """No token stands twice: a turn has those that came since the one that it goes on with."""

    async def use(served: Served) -> None:
        async with served.openai() as client:
            first = await client.chat.completions.with_raw_response.create(
                model="any", messages=HI, metadata={"user": "anna", "task_type": "talk"}
            )
            answer = first.parse().choices[0].message
            second = await client.chat.completions.with_raw_response.create(
                model="any",
                messages=[*HI, cast(Any, answer), {"role": "user", "content": "go on"}],
                metadata={"user": "anna"},
                temperature=0.7,
                seed=3,
            )
        assert answer.content == "one after 21"
        one, two = await turns(served)
        assert first.headers["x-erl-call-id"] == first.parse().id == one.call_id
        assert first.headers["x-erl-checkpoint"] == one.policy_version == "one"
        assert first.headers["x-erl-episode-id"] == second.headers["x-erl-episode-id"] == two.episode_id
        assert (one.after, two.after) == (None, one.turn_id)
        assert text_of(one.context_token_ids).endswith(
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )
        assert text_of(one.sampled_token_ids) == "one after 21<|im_end|>"
        assert (
            text_of(two.context_token_ids) == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
        )
        asked = len(one.context_token_ids + one.sampled_token_ids + two.context_token_ids)
        assert text_of(two.sampled_token_ids) == f"one after {asked}<|im_end|>"
        assert two.messages == ({"role": "user", "content": "go on"},)
        assert (one.temperature, two.temperature) == (0.5, 0.7)
        assert (one.task_type, two.task_type, two.tenant, two.alias) == ("talk", "talk", "a", "production")
        assert one.user == two.user != "anna"
        assert len(one.user) == 32
        assert len(one.logprobs) == len(one.sampled_token_ids)

    Scripted(tmp_path).use(use)


def test_a_stream_says_what_an_answer_says(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        async with served.openai() as client:
            stream = await client.chat.completions.create(
                model="any", messages=HI, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one after 21"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens == 21
        (turn,) = await turns(served)
        assert turn.call_id == chunks[0].id

    Scripted(tmp_path).use(use)


def test_choices_stop_texts_and_tools(tmp_path: Path) -> None:
    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        call = json.dumps({"name": "search", "arguments": {"for": "x"}})
        return said(TOKENIZER, f"see\n<tool_call>{call}</tool_call><|im_end|>")

    async def use(served: Served) -> None:
        async with served.openai() as client:
            answer = await client.chat.completions.create(model="any", messages=HI, n=2, stop="ee")
            assert [(c.message.content, c.finish_reason) for c in answer.choices] == [("s", "stop")] * 2
            called = await client.chat.completions.create(model="any", messages=HI, tools=[SEARCH])
        asked = called.choices[0]
        assert (asked.finish_reason, asked.message.content) == ("tool_calls", "see")
        one, two, three = await turns(served)
        assert (one.call_id, one.turn_id, two.turn_id) == (answer.id, f"{answer.id}-0", f"{answer.id}-1")
        assert text_of(one.sampled_token_ids) == "see"
        assert one.finish_reason == "stop"
        assert three.answer["tool_calls"][0]["function"] == {"name": "search", "arguments": '{"for": "x"}'}

    Scripted(tmp_path, says=says).use(use)


def test_tools_whose_calls_could_not_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = TOKENIZER.chat_template.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>")
    monkeypatch.setattr(TOKENIZER, "chat_template", written)

    async def use(served: Served) -> None:
        status, body, _ = await served.post("/v1/chat/completions", {"messages": HI, "tools": [SEARCH]})
        assert (status, body["error"]["param"]) == (400, "tools")

    Scripted(tmp_path).use(use)


def test_of_an_answer_with_one_call_only_what_is_kept_is_logged(tmp_path: Path) -> None:
    written = '<tool_call>{"name": "search"}</tool_call>'

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        return said(TOKENIZER, f"{written}{written}<|im_end|>")

    async def use(served: Served) -> None:
        async with served.openai() as client:
            await client.chat.completions.create(
                model="any", messages=HI, tools=[SEARCH], parallel_tool_calls=False
            )
        (turn,) = await turns(served)
        assert text_of(turn.sampled_token_ids) == written
        assert len(turn.logprobs) == len(turn.sampled_token_ids)
        assert len(turn.answer["tool_calls"]) == 1

    Scripted(tmp_path, says=says).use(use)


def test_thoughts_are_told_apart_and_are_not_needed_to_go_on(tmp_path: Path) -> None:
    """The log has them among the sampled tokens, and beside the answer."""
    whole = "<think>\nWhat?\n</think>\n\nyes<|im_end|>"

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        return said(TOKENIZER, whole)

    async def use(served: Served) -> None:
        assert (await served.chat("hi"))[0] == "yes"
        assert (await served.chat("hi", "yes", "more"))[0] == "yes"
        first, second = await turns(served)
        assert TOKENIZER.convert_ids_to_tokens(first.sampled_token_ids) == [*whole[:-10], "<|im_end|>"]
        assert first.answer == {"role": "assistant", "content": "yes", "reasoning_content": "What?"}
        assert (second.episode_id, second.after) == (first.episode_id, first.turn_id)

    Scripted(tmp_path, says=says).use(use)


def test_what_must_not_be_stored_is_not_logged_and_nothing_goes_on_with_it(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        answer, headers = await served.chat("hi", store=False)
        assert "x-erl-episode-id" not in headers
        feedback = {"call_id": headers["x-erl-call-id"], "metric": "thumbs", "value": "up"}
        assert (await served.post("/erl/v1/feedback", feedback))[0] == 404
        await served.chat("hi", answer, "more")
        (turn,) = await turns(served)
        assert turn.after is None
        assert len(turn.messages) == 3

    Scripted(tmp_path).use(use)


def test_an_answer_at_temperature_0_cannot_be_trained(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        await served.chat("hi", temperature=0)
        (turn,) = await turns(served)
        assert (turn.temperature, turn.not_trainable) == (0.0, "temperature 0")

    Scripted(tmp_path).use(use)


def test_a_seed_of_the_request_gives_the_same_seed_again(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        for seed in (1, 1, 2, None, None):
            await served.chat("hi", seed=seed)
        seeds = [turn.seed for turn in await turns(served)]
        assert seeds[0] == seeds[1]
        assert len(set(seeds)) == 4

    Scripted(tmp_path).use(use)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": 1e-50}, "temperature"),
        ({"temperature": 0.009}, "temperature"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "a word that has no token: \u00e9"}]}, "messages"),
        ({"metadata": {"task_type": "user:anna"}}, "metadata.task_type"),
        ({"metadata": {"user": ""}}, "metadata.user"),
        ({"metadata": {"episode_id": "e\r\nx-erl-checkpoint: two"}}, "metadata.episode_id"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "messages"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], field: str
) -> None:
    async def use(served: Served) -> None:
        status, body, answer = await served.post("/v1/chat/completions", {"messages": HI, **changed})
        assert (status, body["error"]["param"]) == (400, field)
        assert answer.headers["x-should-retry"] == "false"
        assert served.service.under_way == 0
        await served.chat("hi", top_p=1, frequency_penalty=0)

    Scripted(tmp_path).use(use)


def test_a_long_message_becomes_tokens_beside_the_event_loop_and_one_that_cannot_fit_never_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest token has the 12 characters of <|im_start|>: 2000 tokens have 24,000 characters at most. 16
    are counted around a message."""
    made: list[tuple[int, bool]] = []
    ids = ChatTokenizer._ids

    def noted(chat: ChatTokenizer, text: str) -> tuple[int, ...]:
        made.append((len(text) // 1000, threading.current_thread() is threading.main_thread()))
        return ids(chat, text)

    monkeypatch.setattr(ChatTokenizer, "_ids", noted)

    async def use(served: Served) -> None:
        for size, says in ((23_985, "24001 characters"), (20_000, "20019 tokens"), (5000, "5019 tokens")):
            asked = [{"role": "user", "content": "x" * size}]
            status, body, _ = await served.post("/v1/chat/completions", {"messages": asked})
            assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
            assert says in body["error"]["message"]
        assert served.service.under_way == 0
        assert made == [(20, False), (5, True)]

    Scripted(tmp_path).use(use)


def test_an_engine_that_fails_is_said_and_the_next_call_goes_on_from_the_same_turn(tmp_path: Path) -> None:
    failing = False

    async def says(checkpoint: str, request: GenerationRequest) -> Generation:
        if failing:
            raise RuntimeError("out of memory")
        return said(TOKENIZER, "yes<|im_end|>")

    async def use(served: Served) -> None:
        nonlocal failing
        await served.chat("hi", metadata={"episode_id": "e"})
        failing = True
        async with served.openai() as client:
            with pytest.raises(openai.InternalServerError, match="out of memory") as failed:
                await client.chat.completions.create(model="any", messages=HI)
        assert failed.value.status_code == 503
        failing = False
        await served.chat("hi", "yes", "more", metadata={"episode_id": "e"})
        first, second = await turns(served)
        assert second.after == first.turn_id

    Scripted(tmp_path, says=says).use(use)


def test_a_server_that_stops_does_not_wait_for_a_call_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldAnswers()

    async def use(served: Served) -> None:
        asked = asyncio.create_task(served.chat("hi"))
        await held.begun.wait()
        await served.service.stop(seconds=0.01)
        assert "1 call is cut off: still under way 0.01 s after" in caplog.text
        held.go_on.set()
        await asked
        await served.service.stop(seconds=0.0)
        assert caplog.text.count("cut off") == 1

    Scripted(tmp_path, says=held).use(use)


def test_a_call_whose_client_goes_away_is_logged(tmp_path: Path) -> None:
    held = HeldAnswers()

    async def use(served: Served) -> None:
        gone = asyncio.create_task(served.chat("hi"))
        await held.begun.wait()
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        stopping = asyncio.create_task(served.service.stop())
        await asyncio.sleep(0)
        status, _, answer = await served.post("/v1/chat/completions", {"messages": HI})
        assert (status, answer.headers["Retry-After"]) == (503, "5")
        held.go_on.set()
        await stopping
        assert len(await turns(served)) == 1

    Scripted(tmp_path, says=held).use(use)
