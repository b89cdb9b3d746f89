"""Hermes' form, which Qwen and many others are trained on:
`<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`."""

from erl_pipeline.environments.tool_calls.form import TAGS, Called, CallForm, Tools, between_tags, called_by
from storage.texts import StorableTexts, read_json


def _read(text: str, tools: Tools, texts: StorableTexts) -> Called:
    try:
        return called_by(texts.value(read_json(text)))
    except ValueError as error:
        return Called(problem=f"the call {error}")


HERMES = CallForm(TAGS, between_tags(_read))
