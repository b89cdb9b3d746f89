"""Jinja templates in settings: they are checked when settings are read, and rendered when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

_JINJA = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


def check_template(key: str, template: str, examples: Mapping[str, Any]) -> str:
    """Check a template by rendering it, and return it. `examples` has a value for each variable that it may
    use.

    Raises `ValueError`, which begins with the key, if the template cannot be read or rendered, or uses
    another variable.
    """
    known = f"known variables: {', '.join(sorted(examples)) or 'none'}"
    try:
        unknown = sorted(meta.find_undeclared_variables(_JINJA.parse(template)) - set(examples))
    except TemplateError as error:
        raise ValueError(f"{key}: the template cannot be read: {error}; {known}") from error
    if unknown:
        raise ValueError(f"{key}: the template uses the unknown variable {unknown[0]!r}; {known}")
    try:
        render(template, examples)
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{key}: the template cannot be rendered: {error}; {known}") from error
    return template


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template. Raises what Jinja raises, which is rare for a template that was checked."""
    return _compiled(template).render(values)


@lru_cache(maxsize=64)
def _compiled(template: str) -> Template:
    return _JINJA.from_string(template)
