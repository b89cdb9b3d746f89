"""An agent with pydantic-ai: it asks for a capital, and asks again where the answer is long."""

import re
from typing import Any

import openai
from pydantic_ai import Agent, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from erl_pipeline.environments.agent.attempts import AgentTask

WORDS = 6
RETRIES = 1


async def solve(task: AgentTask) -> dict[str, Any]:
    """The reward is 1 for a short and right answer at once, and less where the framework had to ask again."""
    refused: list[str] = []
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        model = OpenAIChatModel(task.model, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions="You know geography.", retries=RETRIES)

        @agent.output_validator
        def is_short(answer: str) -> str:
            if len(answer.split()) > WORDS:
                refused.append(answer)
                raise ModelRetry("Use at most six words.")
            return answer

        try:
            answer = (await agent.run(task.prompt)).output
        except UnexpectedModelBehavior:
            if not refused:
                raise
            # The framework gave up; what counts is the first answer.
            answer = refused[0]
    # A whole word: the answer Tunisia does not name Tunis.
    if not re.search(rf"\b{re.escape(task.payload['capital'])}\b", answer):
        return {"reward": 0.0, "feedback": "The name of the capital is not in your answer."}
    if (words := len(answer.split())) > WORDS:
        return {"reward": 0.3, "feedback": f"Right, but your answer has {words} words; six are enough."}
    if refused:
        return {"reward": 0.7, "feedback": "Right, but answer with at most six words at once."}
    return {"reward": 1.0, "feedback": "Right and short."}
