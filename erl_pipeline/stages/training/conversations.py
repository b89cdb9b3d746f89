"""Conversations, on which a warm start trains: reading and writing them, and how the policy reads them."""

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erl_pipeline.environments.messages import Message, with_structured_calls
from erl_pipeline.environments.tool_calls.hermes import HERMES
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import InputError
from storage.texts import StorableTexts, read_json

_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """A conversation of which the assistant is taught what it says in `completion`.

    `prompt` are the messages before: mostly there is no assistant's among them. `tools` is JSON.
    """

    prompt: Sequence[Message]
    completion: Sequence[Message]
    tools: str = "[]"

    @property
    def messages(self) -> list[Message]:
        """All messages."""
        return [*self.prompt, *self.completion]


def as_conversation(messages: Sequence[Message], tools: str = "[]") -> Conversation:
    """Messages with an assistant's among them, of which all that the assistant says is taught."""
    begin = next(place for place, each in enumerate(messages) if each["role"] == "assistant")
    return Conversation(messages[:begin], messages[begin:], tools)


def read_conversations(path: Path, texts: StorableTexts) -> list[Conversation]:
    """The conversations of a `.jsonl` or `.parquet` file; `texts` counts those in which something is
    replaced.

    A row has `messages`, or, as the rows of a distillation dataset, `prompt` and `completion`. It may have
    `tools`, as JSON text.

    Raises InputError for a file that cannot be read or has no rows, and for the first row that has no turn
    of the assistant after another message.
    """
    found = []
    for number, row in enumerate(_rows(path), start=1):
        where = f"{path}, row {number}"
        try:
            conversation = _conversation(texts.value(row), where)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from error
        found.append(conversation)
    if not found:
        raise InputError(f"{path}: it holds no rows")
    return found


def _conversation(row: Mapping[str, Any], where: str) -> Conversation:
    tools = row.get("tools") or "[]"
    if not isinstance(tools, str) or not isinstance(read_json(tools), list):
        raise InputError(f"{where}: tools: allowed is a list as JSON text")
    if row.get("completion") is None or row.get("messages") is not None:
        messages = _messages(row.get("messages"), where)
        if "assistant" not in [each["role"] for each in messages[1:]] or messages[0]["role"] == "assistant":
            raise InputError(f"{where}: messages: a user's message and an assistant's after it are needed")
        return as_conversation(messages, tools)
    prompt = _messages(row.get("prompt"), where, "prompt")
    completion = _messages(row["completion"], where, "completion")
    if prompt[0]["role"] == "assistant" or completion[0]["role"] != "assistant":
        raise InputError(
            f"{where}: a prompt begins with another's message, and a completion with the assistant's"
        )
    return Conversation(prompt, completion, tools)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".parquet":
        import polars as pl

        try:
            yield from pl.read_parquet(path, glob=False).iter_rows(named=True)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{path} cannot be read as Parquet: {error}") from error
        return
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: allowed are files that end in .parquet or .jsonl")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, row {number}: is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, row {number}: must be an object, column -> value")
            yield row


def _messages(value: Any, where: str, column: str = "messages") -> list[Message]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: {column}: allowed are messages with `role` and `content`")
    messages: list[Message] = []
    for each in value:
        role, content = (each.get("role"), each.get("content")) if isinstance(each, dict) else (None, None)
        if role not in _ROLES or not isinstance(content, str):
            raise InputError(f"{where}: {column}: allowed are messages with `role` and `content` as text")
        messages.append({"role": role, "content": content})
    return messages


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> None:
    """Write a `.jsonl` file that `read_conversations` reads."""
    with path.open("w", encoding="utf-8") as file:
        for each in conversations:
            row: dict[str, Any] = {"messages": each.messages}
            if each.tools != "[]" or any(said["role"] == "assistant" for said in each.prompt):
                row = {"prompt": each.prompt, "completion": each.completion, "tools": each.tools}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def conversation_sequences(
    model: Path, conversations: Iterable[Conversation], name: str
) -> list[TrainingSequence]:
    """Conversations as the policy in the folder `model` reads them. The assistant's words are trained, with
    the end of its turns.

    Raises InputError, which begins with `name` and its number, for one that does not fit into the policy's
    context, for one that the chat template refuses, and for tools that it does not know.
    """
    from jinja2 import TemplateError

    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.policies.pretrained import read_context_length, read_eos_token_ids
    from erl_pipeline.policies.tokenizers import load_tokenizer

    tokenizer, room = load_tokenizer(model), read_context_length(model)
    chat, ends = ChatTokenizer(tokenizer), read_eos_token_ids(model, tokenizer)
    found = []
    for number, each in enumerate(conversations, start=1):
        if each.tools != "[]" and not chat.knows_tools:
            raise InputError(
                f"{name} {number}: it has tools, and the model's chat template does not write calls of tools "
                "in a form that this project reads"
            )
        messages = each.messages
        if chat.call_form is not HERMES:
            messages = with_structured_calls(messages)
        asked, taught = messages[: len(each.prompt)], messages[len(each.prompt) :]
        try:
            prompt = chat.prompt(asked, each.tools)
            response, mask = chat.completion(taught, ends, each.tools)
        except TemplateError as error:
            raise InputError(f"{name} {number}: the model's chat template refuses it: {error}") from error
        except InputError as error:
            raise InputError(f"{name} {number}: {error}") from error
        if len(prompt) + len(response) > room:
            raise InputError(
                f"{name} {number}: it has {len(prompt) + len(response)} tokens, and the model reads at "
                f"most {room}"
            )
        found.append(
            TrainingSequence(
                trajectory_id=f"conversation-{number}",
                role="warm_start",
                prompt_token_ids=prompt,
                response_token_ids=tuple(response),
                response_mask=tuple(mask),
                behaviour_logprobs=(),
                advantage=1.0,
            )
        )
    return found
