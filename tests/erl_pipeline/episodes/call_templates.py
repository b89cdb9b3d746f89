"""Small chat templates, each with another form of tool calls, and calls as a policy writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from erl_pipeline.environments.tool_calls.form import CallForm
from erl_pipeline.environments.tool_calls.hermes import HERMES
from erl_pipeline.environments.tool_calls.llama import LLAMA
from erl_pipeline.environments.tool_calls.mistral import MISTRAL
from erl_pipeline.environments.tool_calls.tagged import GLM, QWEN3_CODER


def _template(calls: str, result: str = "{{ m.content }}", *, says_both: bool = True) -> str:
    """ChatML with tools. `calls` is how an assistant's calls are written, behind its words if it `says_both`,
    and `result` what a tool answered."""
    words = (
        "{{ m.content | trim }}"
        if says_both
        else "{% if not m.tool_calls %}{{ m.content | trim }}{% endif %}"
    )
    return (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.role == 'tool' %}" + result + "{% else %}" + words + "{% endif %}"
        "{% if m.tool_calls %}" + calls + "{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}"
_ID = "{% if ID | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"


def _by_list(name: str, arguments: Mapping[str, Any]) -> str:
    return "[TOOL_CALLS] [" + json.dumps({"name": name, "arguments": arguments}) + "]"


def _by_tags(name: str, arguments: Mapping[str, Any]) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def _by_keys(name: str, arguments: Mapping[str, Any]) -> str:
    values = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


@dataclass(frozen=True)
class Family:
    """A chat template, its form, how a policy writes a call of a tool with texts as arguments, and what is
    between two calls; `most` calls can be shown in a turn."""

    template: str
    form: CallForm
    call: Callable[[str, Mapping[str, Any]], str]
    between: str = ""
    most: int = 2


FAMILIES = {
    "hermes": Family(
        _template(_EACH + "<tool_call>{{ f | tojson }}</tool_call>{% endfor %}"),
        HERMES,
        lambda name, arguments: (
            f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        ),
    ),
    "llama": Family(
        _template(
            "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
            "{% set f = m.tool_calls[0].function %}"
            '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
            "{{ m.content | tojson }}",
            says_both=False,
        ),
        LLAMA,
        lambda name, arguments: json.dumps({"name": name, "parameters": arguments}),
        "; ",
        most=1,
    ),
    "mistral, in a list": Family(
        _template(
            "[TOOL_CALLS][" + _EACH + _ID.replace("ID", "c.id") + '{"name": "{{ f.name }}", "arguments": '
            '{{ f.arguments | tojson }}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]',
            _ID.replace("ID", "m.tool_call_id") + "[TOOL_RESULTS]{{ m.tool_call_id }} {{ m.content }}",
            says_both=False,
        ),
        MISTRAL,
        _by_list,
    ),
    "mistral, by name": Family(
        _template(_EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}"),
        MISTRAL,
        lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}",
    ),
    "qwen3-coder": Family(
        _template(
            _EACH + "\n<tool_call>\n<function={{ f.name }}>\n{% for key, value in f.arguments | items %}"
            "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>"
            "{% endfor %}"
        ),
        QWEN3_CODER,
        _by_tags,
    ),
    "glm": Family(
        _template(
            _EACH + "\n<tool_call>{{ f.name }}\n{% for key, value in f.arguments | items %}<arg_key>{{ key }}"
            "</arg_key>\n<arg_value>{{ value if value is string else value | tojson }}</arg_value>\n"
            "{% endfor %}</tool_call>{% endfor %}"
        ),
        GLM,
        _by_keys,
    ),
}
