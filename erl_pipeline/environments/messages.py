"""The messages of a conversation, as chat templates of transformers and TRL read them, and the tool calls in
what a policy says.

Calls are read in the form in which the policy's own chat template writes them
(`erl_pipeline.environments.tool_calls`), and in Hermes' where there is no policy. A call that cannot be read
is no error: the environment sees it, with what is wrong, and can tell the policy.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from erl_pipeline.environments.tool_calls.form import CallForm, FoundCall, Tools
from erl_pipeline.environments.tool_calls.hermes import HERMES
from storage.texts import StorableTexts

ToolSchema = Mapping[str, Any]
"""A tool in the form that chat templates take: `{"type": "function", "function": {"name": ...,
"description": ..., "parameters": JSON schema}}`."""


class FunctionCall(TypedDict):
    """Which tool is called, with which arguments."""

    name: str
    arguments: Mapping[str, Any]


class CalledTool(TypedDict):
    """A tool call within an assistant's message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One message. A `tool` message is the answer to the call whose id it names."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: NotRequired[list[CalledTool]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the policy wrote.

    `problem` says what is wrong with an ill-formed one, whose `name` and `arguments` may then be empty; it
    is None for all others. Whether the tool exists and takes these arguments is for the environment to say.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class AssistantTurn:
    """What the policy said in one turn: `text` is its answer, `tool_calls` are those in it, in their order.

    Only an environment that offers tools is given tool calls. `thoughts` are what a model wrote before its
    answer, with the `</think>` that ends them. Where they do not end, the answer is empty. `beside_calls` is
    the answer without well-formed calls; None where nothing is called.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""
    beside_calls: str | None = None


def user_message(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant_message(content: str) -> Message:
    """A turn of the policy without tool calls."""
    return {"role": "assistant", "content": content}


def tool_message(call: ToolCall, content: str) -> Message:
    """The answer to a tool call; also for one that could not be done."""
    return {"role": "tool", "content": content, "tool_call_id": call.call_id, "name": call.name}


def opening(system: str, user: str) -> list[Message]:
    """A system message, left out where it would be empty, and a user message."""
    asked: Message = {"role": "user", "content": user}
    return [{"role": "system", "content": system}, asked] if system else [asked]


def without_thoughts(message: Message) -> Message:
    """A message of a conversation without the thoughts before an assistant's answer, for those who are shown
    what was said."""
    if message["role"] != "assistant" or not message["content"]:  # Imported ones may have null.
        return message
    return {**message, "content": message["content"][answer_start(message["content"]) :]}


def words_of(message: Message) -> str:
    """What a message says, for a reader: its content, and its tool calls, each as `name({"key": "value"})` on
    a line of its own. The content alone leaves out what was called."""
    lines = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls") or ():
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        lines.append(f"{call['function']['name']}({arguments})")
    return "\n".join(lines)


MARKERS = HERMES.markers
"""What a call is written between in texts that no policy has written, such as gold answers."""

THOUGHTS = _THOUGHTS_BEGIN, _THOUGHTS_END = "<think>", "</think>"
"""What thoughts are written between. Many chat templates open them already."""


def read_turn(
    text: str,
    turn: int,
    texts: StorableTexts,
    form: CallForm | None = HERMES,
    tools: Tools = (),
    *,
    thinks: bool = False,
) -> AssistantTurn:
    """What the policy said in one turn: thoughts, answer, and the tool calls in the answer, in order.
    Everything in it is storable.

    Args:
        turn: counts the policy's turns; ids of calls derive from it.
        texts: counts the texts in which something is replaced.
        form: how calls are written; None where none are read.
        tools: those that are offered, which some forms are read by.
        thinks: whether the text begins within thoughts, which the prompt has opened.
    """
    said = texts.text(text)
    start = answer_start(said, thinks=thinks)
    thoughts, answer = said[:start], said[start:]
    found = () if form is None else form.find(answer, 0, tools, texts)
    if not found:
        return AssistantTurn(answer, thoughts=thoughts)
    calls = [ToolCall(f"call{turn:03d}{number:02d}", *each.called) for number, each in enumerate(found)]
    return AssistantTurn(answer, tuple(calls), thoughts, _beside(answer, found))


def _beside(text: str, found: Sequence[FoundCall]) -> str:
    """A text without its well-formed calls."""
    kept, end = [], 0
    for each in found:
        if each.called.problem is None:
            kept.append(text[end : each.begin])
            end = each.end
    return "".join([*kept, text[end:]]).strip()


def answer_start(text: str, *, thinks: bool = False) -> int:
    """Where the answer begins behind the thoughts of a model that writes them, as Qwen3 and DeepSeek-R1:
    behind the last `</think>` and white space. At the end where thoughts do not end; 0 without thoughts.

    `thinks`: whether the text begins within thoughts; else they begin with `<think>`.
    """
    end = text.rfind(_THOUGHTS_END)
    if end >= 0:
        return len(text) - len(text[end + len(_THOUGHTS_END) :].lstrip())
    return len(text) if thinks or text.lstrip().startswith(_THOUGHTS_BEGIN) else 0


def turn_message(turn: AssistantTurn) -> Message:
    """The message of a turn, with its thoughts. Well-formed calls become structured; all other text stays in
    the content."""
    message = answer_message(turn)
    content = marked_thoughts(turn.thoughts) + message["content"]
    message["content"] = content if turn.beside_calls is None else content.strip()
    return message


def marked_thoughts(thoughts: str) -> str:
    """Thoughts as messages have them, which nobody takes for an answer: those that the prompt opened and that
    do not end have no mark of their own."""
    return thoughts if answer_start(thoughts) or not thoughts else _THOUGHTS_BEGIN + thoughts


def unmarked_thoughts(thoughts: str) -> str:
    """Thoughts without the marks around them."""
    return thoughts.strip().removeprefix(_THOUGHTS_BEGIN).removesuffix(_THOUGHTS_END).strip()


def answer_message(turn: AssistantTurn) -> Message:
    """The same without thoughts."""
    content = turn.text if turn.beside_calls is None else turn.beside_calls
    message: Message = {"role": "assistant", "content": content}
    structured = _structured(turn.tool_calls)
    if structured:
        message["tool_calls"] = structured
    return message


def with_structured_calls(messages: Sequence[Message]) -> list[Message]:
    """A conversation whose calls are text in Hermes' form, as files have them, with structured calls; results
    name the calls that they answer, in their order."""
    structured: list[Message] = []
    awaited: list[ToolCall] = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            turn = read_turn(message["content"], number, StorableTexts())
            message, awaited = turn_message(turn), list(turn.tool_calls)
        elif message["role"] == "tool" and awaited:
            call = awaited.pop(0)
            if call.problem is None:
                message = {**message, "tool_call_id": call.call_id, "name": call.name}
        structured.append(message)
    return structured


def _structured(calls: Sequence[ToolCall]) -> list[CalledTool]:
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for call in calls
        if call.problem is None
    ]
