"""Arguments of a chat template, written into its first lines: whoever renders the template then sees them."""

import json
import re
from collections.abc import Mapping

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import _get_template_variables

from erl_pipeline.config.policy import GIVEN_TO_TEMPLATES, TemplateArgument

_LINE = re.compile(r"\{%- set (\w+) = (true|false|-?[0-9][^ \n]*|\"(?:[^\"\\\n]|\\.)*\") %\}\n")


def with_arguments(
    template: str | Mapping[str, str], arguments: Mapping[str, TemplateArgument]
) -> str | dict[str, str]:
    """The chat template, or each of several by name, with arguments in its first lines. Lines that set the
    same names there already are replaced.

    Raises ValueError for a template that is not Jinja, and for an argument that no template reads, naming the
    variables that they read.
    """
    several = {"": template} if isinstance(template, str) else template
    own = {name: _own(each) for name, each in several.items()}
    read = frozenset[str]().union(*(_read(each) for _, each in own.values()))
    if unread := sorted(set(arguments) - read):
        known = f"it reads {', '.join(sorted(read))}" if read else "it reads no argument"
        raise ValueError(f"the chat template does not read {', '.join(unread)}; {known}")
    written = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    changed = {name: _joined({**first, **written}, rest) for name, (first, rest) in own.items()}
    return changed[""] if isinstance(template, str) else changed


def _own(template: str) -> tuple[dict[str, str], str]:
    """The names and values that the first lines of a template set, and the rest of it."""
    first: dict[str, str] = {}
    start = 0
    while line := _LINE.match(template, start):
        first[line.group(1)] = line.group(2)
        start = line.end()
    return first, template[start:]


def _joined(first: Mapping[str, str], rest: str) -> str:
    # The line feed behind a statement is not part of what is rendered.
    return "".join(f"{{%- set {name} = {value} %}}\n" for name, value in sorted(first.items())) + rest


def _read(template: str) -> frozenset[str]:
    """The arguments that a template reads."""
    try:
        # The library has no public function for this; it knows the statements that it adds to Jinja.
        variables = _get_template_variables(template)
    except TemplateError as error:
        raise ValueError(f"the chat template is not Jinja: {error}") from error
    return frozenset(
        name for name in variables if name not in GIVEN_TO_TEMPLATES and not name.endswith("_token")
    )
