"""Arguments of a chat template that stand in its first lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from erl_pipeline.policies.chat_templates import with_arguments
from erl_pipeline.policies.pretrained import load_policy, save_policy
from erl_pipeline.policies.tokenizers import load_tokenizer, tokenizer_digest
from storage.errors import InputError
from tests.random_models import word_tokenizer

READS = (
    "\n{{ thinking }}{% if effort is defined %}{{ effort }}{% endif %}{{ bos_token }}{{ messages[0].role }}"
)


def rendered(template: str | dict[str, str], tools: Any = None) -> str:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    asked = [{"role": "user", "content": "left"}]
    return str(tokenizer.apply_chat_template(asked, tools=tools, tokenize=False))


def test_each_argument_is_set_in_a_line_by_name_and_its_template_is_rendered_as_before() -> None:
    template = with_arguments(READS, {"thinking": False, "effort": 'a "high" %} ü\n\\'})
    assert template == (
        '{%- set effort = "a \\"high\\" %} ü\\n\\\\" %}\n{%- set thinking = false %}\n' + READS
    )
    assert rendered(template) == '\nFalsea "high" %} ü\n\\<bos>user'


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "True"), (-3, "-3"), (0.5, "0.5"), (1e-7, "1e-07"), ("", ""), ("true", "true")],
)
def test_values_are_those_of_the_setting(value: Any, shown: str) -> None:
    assert rendered(with_arguments("{{ x }}", {"x": value})) == shown


@pytest.mark.parametrize(
    "template",
    [
        "{% macro opened() %}{{ x }}{% endmacro %}{% for m in messages %}{{ opened() }}{% endfor %}",
        "{% if x is not defined %}{% set x = true %}{% endif %}{% for m in messages %}{{ x }}{% endfor %}",
        "{% set x = x if x is defined else true %}{% for m in messages %}{{ x }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
        "{% set ns = namespace(on=true) %}{% if x is defined %}{% set ns.on = x %}{% endif %}{{ ns.on }}",
    ],
    ids=["macro", "default", "expression", "generation", "namespace"],
)
def test_an_argument_is_seen_wherever_a_template_reads_it(template: str) -> None:
    assert rendered(with_arguments(template, {"x": False})) == "False"


def test_arguments_of_a_checkpoint_stay_unless_they_are_given_anew() -> None:
    once = with_arguments(READS, {"thinking": False, "effort": "low"})
    assert with_arguments(once, {"thinking": False}) == once
    assert rendered(with_arguments(once, {"thinking": True})) == "\nTruelow<bos>user"


def test_of_several_templates_each_gets_them() -> None:
    changed = with_arguments({"default": "{{ x }}", "tool_use": "tools {{ x }}"}, {"x": 1})
    assert changed == {"default": "{%- set x = 1 %}\n{{ x }}", "tool_use": "{%- set x = 1 %}\ntools {{ x }}"}
    look = [{"type": "function", "function": {"name": "look"}}]
    assert (rendered(changed), rendered(changed, look)) == ("1", "tools 1")


def test_an_argument_that_the_template_does_not_read_is_refused_with_those_that_it_reads() -> None:
    with pytest.raises(ValueError, match=r"does not read thinkin; it reads effort, thinking$"):
        with_arguments(READS, {"thinkin": False})
    with pytest.raises(ValueError, match=r"does not read x; it reads no argument$"):
        with_arguments("{% set x = 1 %}{{ x }}{{ messages }}", {"x": 2})
    with pytest.raises(ValueError, match="is not Jinja"):
        with_arguments("{% if %}", {"x": 2})


def test_a_checkpoint_is_saved_and_loaded_with_its_arguments(checkpoint: Path, tmp_path: Path) -> None:
    plain = load_policy(checkpoint)
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    tokenizer.chat_template = "{% if off is defined %}off{% endif %}" + str(tokenizer.chat_template)
    tokenizer.save_pretrained(checkpoint)
    policy = load_policy(checkpoint, template_arguments={"off": True})
    save_policy(policy, tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert str(again.chat_template).startswith("{%- set off = true %}\n{% if off is defined %}off")
    assert tokenizer_digest(again) == policy.tokenizer_digest != plain.tokenizer_digest
    assert settings["eos_token"] == again.eos_token
    with pytest.raises(InputError, match=r"policy\.template_arguments: .* does not read of; it reads off$"):
        load_policy(checkpoint, template_arguments={"of": True})


def test_only_whole_lines_that_set_one_text_are_taken_for_arguments() -> None:
    first = '{%- set a = "x" %}{%- set b = "y" %}\n'
    changed = with_arguments(first + "{{ a }}{{ b }}{{ c }}", {"c": "z"})
    assert changed == '{%- set c = "z" %}\n' + first + "{{ a }}{{ b }}{{ c }}"
