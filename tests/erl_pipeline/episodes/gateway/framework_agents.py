"""Agents that are written with frameworks, as their users write them."""

from __future__ import annotations

from typing import Any

import openai
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from pydantic import BaseModel
from pydantic_ai import Agent as TypedAgent
from pydantic_ai import ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from erl_pipeline.environments.agent.attempts import AgentTask

set_tracing_disabled(True)


@function_tool
def search(query: str) -> str:
    """Find pages."""
    return f"page on {query}"


def _client(task: AgentTask) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)


def _model(client: openai.AsyncOpenAI) -> Any:
    return {"model": OpenAIResponsesModel("policy", client), "model_settings": ModelSettings(temperature=0.2)}


def _triage(client: openai.AsyncOpenAI) -> Agent[Any]:
    """Hands over to an agent that searches."""
    expert = Agent("expert", instructions="You know lakes.", tools=[search], **_model(client))
    return Agent("triage", instructions="Choose an expert.", handoffs=[expert], **_model(client))


async def hands_off(task: AgentTask) -> dict[str, Any]:
    async with _client(task) as client:
        result = await Runner.run(_triage(client), task.prompt)
    return {"answer": str(result.final_output)}


async def streams_with_a_handoff(task: AgentTask) -> dict[str, Any]:
    async with _client(task) as client:
        result = Runner.run_streamed(_triage(client), task.prompt)
        events = [event.type async for event in result.stream_events()]
    return {"answer": str(result.final_output), "metrics": {"events": len(events)}}


async def asks_an_agent_as_a_tool(task: AgentTask) -> dict[str, Any]:
    """The inner agent has a conversation of its own, between two turns of the outer one."""
    async with _client(task) as client:
        expert = Agent("expert", instructions="You know lakes.", tools=[search], **_model(client))
        tool = expert.as_tool("ask_expert", "Asks somebody who knows lakes.")
        outer = Agent("outer", instructions="Ask before you answer.", tools=[tool], **_model(client))
        result = await Runner.run(outer, task.prompt)
    return {"answer": str(result.final_output)}


class Answer(BaseModel):
    number: int


async def answers_by_type(task: AgentTask) -> dict[str, Any]:
    """An answer has to be a number of at most 10; otherwise the model is told why, and asked again."""
    async with _client(task) as client:
        model = OpenAIChatModel(
            "policy",
            provider=OpenAIProvider(openai_client=client),
            profile=ModelProfile(supports_forced_tool_choice=False),
        )
        agent = TypedAgent(model, output_type=Answer, retries=3)

        @agent.output_validator
        def small(answer: Answer) -> Answer:
            if answer.number > 10:
                raise ModelRetry("the number is above 10")
            return answer

        result = await agent.run(task.prompt)
    return {"answer": str(result.output.number)}


async def requires_a_tool(task: AgentTask) -> dict[str, Any]:
    """Without that profile the framework forces a tool call."""
    async with _client(task) as client:
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
        result = await TypedAgent(model, output_type=Answer).run(task.prompt)
    return {"answer": str(result.output.number)}
