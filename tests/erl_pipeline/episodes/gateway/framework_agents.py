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


def _model(task: AgentTask) -> Any:
    asked = openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key)
    return {"model": OpenAIResponsesModel("policy", asked), "model_settings": ModelSettings(temperature=0.2)}


async def hands_off(task: AgentTask) -> dict[str, Any]:
    """A triage agent hands over to one that searches."""
    expert = Agent("expert", instructions="You know lakes.", tools=[search], **_model(task))
    triage = Agent("triage", instructions="Choose an expert.", handoffs=[expert], **_model(task))
    result = await Runner.run(triage, task.prompt)
    return {"answer": str(result.final_output)}


async def streams_with_a_handoff(task: AgentTask) -> dict[str, Any]:
    expert = Agent("expert", instructions="You know lakes.", tools=[search], **_model(task))
    triage = Agent("triage", instructions="Choose an expert.", handoffs=[expert], **_model(task))
    result = Runner.run_streamed(triage, task.prompt)
    events = [event.type async for event in result.stream_events()]
    return {"answer": str(result.final_output), "metrics": {"events": len(events)}}


async def asks_an_agent_as_a_tool(task: AgentTask) -> dict[str, Any]:
    """The inner agent has a conversation of its own, between two turns of the outer one."""
    expert = Agent("expert", instructions="You know lakes.", tools=[search], **_model(task))
    tool = expert.as_tool("ask_expert", "Asks somebody who knows lakes.")
    outer = Agent("outer", instructions="Ask before you answer.", tools=[tool], **_model(task))
    result = await Runner.run(outer, task.prompt)
    return {"answer": str(result.final_output)}


class Answer(BaseModel):
    number: int


async def answers_by_type(task: AgentTask) -> dict[str, Any]:
    """An answer has to be a number of at most 10; otherwise the model is told why, and asked again."""
    provider = OpenAIProvider(base_url=task.base_url, api_key=task.api_key)
    profile = ModelProfile(supports_forced_tool_choice=False)
    agent = TypedAgent(
        OpenAIChatModel("policy", provider=provider, profile=profile), output_type=Answer, retries=3
    )

    @agent.output_validator
    def small(answer: Answer) -> Answer:
        if answer.number > 10:
            raise ModelRetry("the number is above 10")
        return answer

    result = await agent.run(task.prompt)
    return {"answer": str(result.output.number)}


async def requires_a_tool(task: AgentTask) -> dict[str, Any]:
    """Without that profile the framework forces a tool call."""
    provider = OpenAIProvider(base_url=task.base_url, api_key=task.api_key)
    agent = TypedAgent(OpenAIChatModel("policy", provider=provider), output_type=Answer)
    return {"answer": str((await agent.run(task.prompt)).output.number)}
