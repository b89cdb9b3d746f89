"""The page of all settings, from the models of the configuration and of every plug-in of the project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic.fields import FieldInfo

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import DescribedSetting, describe_settings
from reference.markdown import code, plain, table

_BOUNDS = {Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<")}


@dataclass(frozen=True)
class Section:
    """A group of settings: its dotted key, the choices of `type` by which it is reached, and its model."""

    key: str
    chosen: tuple[tuple[str, str], ...]
    """Pairs of a key and its `type`, from the outermost on."""
    model: type[Settings]

    @property
    def title(self) -> str:
        """The heading of the section."""
        above = [f"{key}: {type_}" for key, type_ in self.chosen if key != self.key]
        own = [f"{key}: {type_}" for key, type_ in self.chosen if key == self.key] or [self.key]
        return (
            code(own[0]) + (f" (with {', '.join(map(code, above))})" if above else "")
            if self.key
            else "The run"
        )

    @property
    def anchor(self) -> str:
        """The anchor of the section in links."""
        words = [self.key, *(type_ for _, type_ in self.chosen)]
        return re.sub(r"\W+", "-", "-".join(words)).strip("-").lower() or "run"


def settings_text() -> str:
    """The page without its introduction, in Markdown."""
    return "\n".join(_section_text(section) for section in sections())


def sections() -> list[Section]:
    """Every group of settings: the run's own first, and each group before those inside it."""
    return [Section("", (), RunConfig), *_below("", (), RunConfig)]


def _below(prefix: str, chosen: tuple[tuple[str, str], ...], model: type[Settings]) -> Iterator[Section]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}{'.NAME' if get_origin(field.annotation) is dict else ''}"
        for group in _groups(field.annotation):
            choice = ((key, _type_of(group)),) if "type" in group.model_fields else ()
            yield Section(key, (*chosen, *choice), group)
            yield from _below(f"{key}.", (*chosen, *choice), group)


def _groups(annotation: Any) -> list[type[Settings]]:
    """The groups of settings in a type such as `A | B | None`; the base `PluginSettings` does not count."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return [] if annotation is PluginSettings else [annotation]
    return [group for argument in get_args(annotation) for group in _groups(argument)]


def _type_of(model: type[Settings]) -> str:
    return str(get_args(model.model_fields["type"].annotation)[0])


def _section_text(section: Section) -> str:
    own = [each for each in describe_settings(section.model) if "." not in each.key]
    rows = [_row(each, section.model.model_fields[each.key]) for each in own if each.key != "type"]
    text = plain(section.model.__doc__ or "")
    body = table(("key", "type", "default", "what it does"), rows) if rows else "It has no settings.\n"
    level = "###" if "." in section.key else "##"
    return f"{level} {section.title} {{ #{section.anchor} }}\n\n{text}\n\n{body}"


def _row(setting: DescribedSetting, field: FieldInfo) -> Sequence[str]:
    chosen = len(_groups(field.annotation)) > 1
    kind = "settings, by `type`" if chosen or "settings | settings" in setting.type else plain(setting.type)
    shown = " ".join([kind, ", ".join(_bounds(field.metadata))]).strip()
    return code(setting.key), shown, _default(setting), plain(setting.text or _summary(field))


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for each in metadata:
        for kind, (name, sign) in _BOUNDS.items():
            if isinstance(each, kind):
                yield f"{sign} {getattr(each, name)}"
        if isinstance(each, MinLen):
            yield f"at least {each.min_length}"
        if isinstance(each, MaxLen):
            yield f"at most {each.max_length}"


def _default(setting: DescribedSetting) -> str:
    if setting.required:
        return "must be set"
    if isinstance(setting.default, dict) and setting.default:
        return f"type {code(setting.default['type'])}" if "type" in setting.default else "see its section"
    text = json.dumps(setting.default, ensure_ascii=False)
    text = text.strip('"') if isinstance(setting.default, str) else text
    return code(text if len(text) <= 60 else f"{text[:57]}...") if text else "empty"


def _summary(field: FieldInfo) -> str:
    """A description for a key without one: the first sentence about its group, or the types to choose
    from."""
    groups = _groups(field.annotation)
    if len(groups) > 1:
        return f"One of {', '.join(code(_type_of(each)) for each in groups)}."
    text = " ".join((groups[0].__doc__ or "").split()) if groups else ""
    return text.partition(". ")[0].rstrip(".") + "." if text else ""
