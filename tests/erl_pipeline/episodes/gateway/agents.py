"""Agents that tests let play: plain programs that know nothing of training."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import suppress
from typing import Any

import openai

from erl_pipeline.environments.agent.attempts import AgentTask

SEARCH: Any = {
    "type": "function",
    "function": {"name": "search", "description": "Find pages.", "parameters": {"type": "object"}},
}


def client(task: AgentTask, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=task.base_url, api_key=task.api_key, **options)


def asks_once(task: AgentTask) -> dict[str, Any]:
    """The reward is 1 where the policy says what the task wants to hear."""
    answer = client(task).chat.completions.create(
        model=task.model,
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": task.prompt}],
        temperature=0.3,
    )
    said = answer.choices[0].message.content
    return {"reward": float(said == task.payload["wanted"]), "feedback": f"it said {said}"}


def goes_on_without_an_answer(task: AgentTask) -> dict[str, Any]:
    messages: Any = [{"role": "user", "content": task.prompt}]
    with suppress(openai.BadRequestError):
        client(task).chat.completions.create(model="any", messages=messages, **task.payload.get("asks", {}))
    return {"reward": 0.0}


def uses_a_tool(task: AgentTask) -> dict[str, Any]:
    """Calls the tool as often as the policy wants, then answers."""
    messages: list[Any] = [{"role": "user", "content": task.prompt}]
    while True:
        answer = client(task).chat.completions.create(model="any", messages=messages, tools=[SEARCH])
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return {"answer": message.content}
        for call in message.tool_calls:
            asked = json.loads(call.function.arguments)["for"]  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"page on {asked}"})


def streams(task: AgentTask) -> dict[str, Any]:
    with client(task).chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": task.prompt}],
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    return {"reward": 1.0, "feedback": text, "metrics": {"said": chunks[-1].usage.completion_tokens}}


async def asks_at_the_same_time(task: AgentTask) -> dict[str, Any]:
    """Two calls on one history, then one on each answer."""
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as asked:

        async def ask(*said: str) -> str:
            roles = ("user", "assistant") * len(said)
            messages: Any = [{"role": r, "content": c} for r, c in zip(roles, said, strict=False)]
            answer = await asked.chat.completions.create(model="any", messages=messages)
            return str(answer.choices[0].message.content)

        first = await ask(task.prompt)
        left, right = await asyncio.gather(ask(task.prompt, first, "left"), ask(task.prompt, first, "right"))
        await asyncio.gather(
            ask(task.prompt, first, "left", left, "x"), ask(task.prompt, first, "right", right, "y")
        )
    return {"reward": 1.0}


planner_was_asked = threading.Event()
"""Set by the policy of a test when it gets the planner's call."""


async def asks_planner_and_critic(task: AgentTask) -> dict[str, Any]:
    """Asks the planner first, and the critic before the planner has answered."""
    planner_was_asked.clear()
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as asked:

        async def ask(said: str) -> str:
            messages: Any = [{"role": "system", "content": ""}, {"role": "user", "content": said}]
            answer = await asked.chat.completions.create(model="any", messages=messages)
            return str(answer.choices[0].message.content)

        planner = asyncio.create_task(ask("planner"))
        await asyncio.to_thread(planner_was_asked.wait, 60)
        said, _ = await asyncio.gather(planner, ask("critic"))
    return {"reward": float(said == "good"), "feedback": "plan better"}


days = ["Today is Monday."]
"""The last one is what `says_the_day` says."""


def says_the_day(task: AgentTask) -> dict[str, Any]:
    """As agents that write the date into their system message."""
    messages: Any = [{"role": "system", "content": days[-1]}, {"role": "user", "content": task.prompt}]
    answer = client(task).chat.completions.create(model="any", messages=messages)
    return {"reward": 0.0, "feedback": f"it said {answer.choices[0].message.content}"}


offered: list[str] = []
"""The tools of the attempts of `offers_another_tool`."""


def offers_another_tool(task: AgentTask) -> dict[str, Any]:
    """Begins each attempt with the same messages and with a tool of another name."""
    offered.append(f"tool_{len(offered)}")
    tool: Any = {"type": "function", "function": {"name": offered[-1]}}
    answer = client(task).chat.completions.create(
        model="any", messages=[{"role": "user", "content": task.prompt}], tools=[tool]
    )
    return {"reward": float(answer.choices[0].message.content == "7"), "feedback": "no"}


def asks_for_choices(task: AgentTask) -> dict[str, Any]:
    answer = client(task).chat.completions.create(
        model="any", messages=[{"role": "user", "content": task.prompt}], n=3
    )
    return {"reward": 1.0, "feedback": " ".join(str(each.message.content) for each in answer.choices)}


def asks_without_end(task: AgentTask) -> dict[str, Any]:
    """Until it is refused."""
    try:
        while True:
            client(task).chat.completions.create(
                model="any", messages=[{"role": "user", "content": task.prompt}]
            )
    except openai.PermissionDeniedError as refused:
        return {"reward": 0.5, "feedback": str(refused.code)}


def says_nothing(task: AgentTask) -> None:
    client(task).chat.completions.create(model="any", messages=[{"role": "user", "content": task.prompt}])


def crashes(task: AgentTask) -> None:
    raise RuntimeError("no map")


def makes_no_call(task: AgentTask) -> dict[str, Any]:
    return {"reward": 1.0}


def knows_the_answer(task: AgentTask) -> dict[str, Any]:
    """Reports a reward though a scorer decides."""
    says_nothing(task)
    return {"reward": 1.0, "answer": "7"}


late: list[str] = []
"""What calls after the end of an attempt got."""


def calls_later(task: AgentTask) -> dict[str, Any]:
    """Keeps the key of its first attempt, and asks with it in the second."""
    late.append(task.api_key)
    says_nothing(task)
    if len(late) > 1:
        try:
            old = openai.OpenAI(base_url=task.base_url, api_key=late[0])
            old.chat.completions.create(model="any", messages=[{"role": "user", "content": "again"}])
        except openai.PermissionDeniedError as refused:
            late.append(str(refused.code))
    return {"reward": 0.0, "feedback": "later"}


async def branches_and_varies(task: AgentTask) -> dict[str, Any]:
    """Branches, and gets rewards that differ from sample to sample whatever the policy says."""
    result = await asks_at_the_same_time(task)
    return {**result, "reward": task.seed % 3 / 2, "feedback": f"the task was {task.prompt}"}
