"""Forms whose arguments are text between tags, of Qwen3-Coder and GLM-4.5. What a value is, a text or JSON,
only the tool's schema says."""

import re
from collections.abc import Sequence
from typing import Any

from erl_pipeline.environments.tool_calls.form import TAGS, Called, CallForm, Tools, between_tags
from erl_pipeline.environments.tool_calls.schemas import schemas_of, typed
from storage.texts import StorableTexts

_FUNCTION = re.compile(r"\s*<function=([^<>]+)>(.*)</function>\s*", re.DOTALL)
# A value with the beginning of a parameter in it is one that was not closed.
_PARAMETER = re.compile(r"\s*<parameter=([^<>]+)>\n?((?:(?!<parameter=).)*?)\n?</parameter>\s*", re.DOTALL)
_GLM_FUNCTION = re.compile(r"\s*([^\s<]+)\s*(.*)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)


def _read_qwen3_coder(text: str, tools: Tools, texts: StorableTexts) -> Called:
    function = _FUNCTION.fullmatch(text)
    if function is None:
        return Called(problem="the call is no <function=name>...</function>")
    return _called(function, _PARAMETER, "<parameter=name>...</parameter>", tools, texts)


def _read_glm(text: str, tools: Tools, texts: StorableTexts) -> Called:
    function = _GLM_FUNCTION.fullmatch(text)
    if function is None:
        return Called(problem="the call has no name")
    form = "<arg_key>...</arg_key> with an <arg_value>...</arg_value>"
    return _called(function, _GLM_ARGUMENT, form, tools, texts)


def _called(
    function: re.Match[str], argument: re.Pattern[str], form: str, tools: Tools, texts: StorableTexts
) -> Called:
    """The call of a function whose arguments are all that `argument` finds."""
    name, written = function[1].strip(), function[2]
    pairs, rest = _pairs(argument, written)
    if rest.strip():
        return Called(name, problem=f"the call has something else in it than {form}")
    schemas = schemas_of(tools, name)
    arguments: dict[str, Any] = {key: typed(value, schemas.get(key), texts) for key, value in pairs}
    return Called(name, arguments)


def _pairs(argument: re.Pattern[str], written: str) -> tuple[Sequence[tuple[str, str]], str]:
    """Names and values one behind the other, and what follows them."""
    pairs, end = [], 0
    while match := argument.match(written, end):
        pairs.append((match[1].strip(), match[2]))
        end = match.end()
    return pairs, written[end:]


QWEN3_CODER = CallForm(TAGS, between_tags(_read_qwen3_coder))
GLM = CallForm((*TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"), between_tags(_read_glm))
