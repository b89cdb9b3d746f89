"""An agent with pydantic-ai: it asks for a capital, and asks again where the answer is more than a name."""

from typing import Any

import openai
from pydantic_ai import Agent, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from erl_pipeline.environments.agent.attempts import AgentTask

WORDS = 3
RETRIES = 1


async def solve(task: AgentTask) -> dict[str, Any]:
    """The reward is 1 for the name alone at once, less for each time that the framework had to ask again."""
    refused: list[str] = []
    async with openai.AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        model = OpenAIChatModel(task.model, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions="You know geography.", retries=RETRIES)

        @agent.output_validator
        def is_a_name(answer: str) -> str:
            if len(answer.split()) > WORDS:
                refused.append(answer)
                raise ModelRetry("Give the name alone.")
            return answer

        try:
            answer = (await agent.run(task.prompt)).output
        except UnexpectedModelBehavior:
            return {"reward": 0.0, "feedback": "Every answer had more than three words; give the name alone."}
    if task.payload["capital"] not in answer:
        return {"reward": 0.0, "feedback": f"{answer.strip()} is not the capital."}
    if refused:
        return {"reward": 1 - 0.3 * len(refused), "feedback": "Right, but give the name alone at once."}
    return {"reward": 1.0, "feedback": "Right, and the name alone."}
