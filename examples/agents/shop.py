"""An agent with OpenAI's package and a tool: a customer asks for a price, and the policy has to look it up.

It knows nothing of training: a loop of calls as in OpenAI's documentation.
"""

import json
import re
from typing import Any

import openai

from erl_pipeline.environments.agent.attempts import AgentTask

CALLS = 4
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "the price of one item, by its name in the list",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    },
}


def solve(task: AgentTask) -> dict[str, Any]:
    """Answer a customer's question. The list names each item in the singular; its prices differ by task."""
    prices: dict[str, int] = task.payload["prices"]
    wanted, asked = str(prices[task.payload["item"]]), []
    messages: list[Any] = [
        {"role": "system", "content": "You work in a shop."},
        {"role": "user", "content": task.prompt},
    ]
    with openai.OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        for _ in range(CALLS):
            answer = client.chat.completions.create(model=task.model, messages=messages, tools=[TOOL])
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                assert call.type == "function"
                item = str(json.loads(call.function.arguments).get("item"))
                asked.append(item)
                found = str(prices.get(item, "no such item"))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    if wanted in re.findall(r"\d+", message.content or ""):
        return {"reward": 1.0, "feedback": "Right."}
    if not asked:
        return {"reward": 0.0, "feedback": "You did not look up a price."}
    if task.payload["item"] not in asked:
        missing = ", ".join(item for item in asked if item not in prices)
        no_item = f"There is no item {missing}. Items are in the singular."
        return {"reward": 0.1, "feedback": no_item if missing else "You looked up another item."}
    return {"reward": 0.3, "feedback": "You looked the price up, and did not tell it."}
