"""The page of all numbers: the columns of tables and reports, and the metrics of trainers."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import get_type_hints

from erl_pipeline.config.distillation import Form
from erl_pipeline.config.experience import ExperienceConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.column import Column
from erl_pipeline.stages.columns import with_groups
from erl_pipeline.trainers import metrics as trainer_metrics
from reference.markdown import code, plain, table
from reference.tables import docstrings_of


def metrics_text() -> str:
    """The page without its introduction, in Markdown."""
    shown = table(("name", "column", "what it says", "methods"), _column_rows())
    classes = (
        trainer_metrics.UpdateMetrics,
        trainer_metrics.ReplayMetrics,
        trainer_metrics.DistillationMetrics,
        trainer_metrics.FineTuneMetrics,
    )
    return "\n".join([shown, "## What a trainer reports", "", *map(_class_text, classes)])


def shown_columns() -> dict[str, tuple[Column, list[str]]]:
    """Columns by name, with the methods that can show them."""
    found: dict[str, tuple[Column, list[str]]] = {}
    for name, plugin in sorted(plugins("methods").found.items()):
        if plugin.is_own:
            method = plugin.value
            settings = plugin.settings.model_validate({"type": name})
            own = method.columns(settings)
            form: Form = "off" if method.distilled is None else "separate"
            has_lessons = method.takes_experience or method.own_experience(settings) is not None
            lessons = ExperienceConfig() if has_lessons else None
            for column in with_groups(own, replays=method.replayed is not None, form=form, lessons=lessons):
                found.setdefault(column.name, (column, []))[1].append(name)
    return found


def _column_rows() -> Iterator[tuple[str, ...]]:
    for name, (column, methods) in sorted(shown_columns().items()):
        label = column.label if column.in_tables else f"({column.label})"
        drawn = column.drawn
        drawn_as = f": {drawn.line}, {drawn.unit}" if drawn is not None and not column.in_tables else ""
        yield code(name), plain(label), plain(column.meaning + drawn_as), ", ".join(dict.fromkeys(methods))


def _class_text(model: type) -> str:
    tree = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(tree, ast.ClassDef)
    said = dict(docstrings_of(tree))
    types = get_type_hints(model)
    numbers = [each.name for each in fields(model) if types[each.name] in (int, float)]
    rows = [(code(name), plain(said[name])) for name in numbers if name in said]
    others = ", ".join(code(name) for name in numbers if name not in said)
    parts = [f"### {code(model.__name__)}", plain(model.__doc__ or "")]
    parts += [table(("name", "what it says"), rows)] if rows else []
    return "\n\n".join([*parts, f"{'Beside these' if rows else 'They are'}: {others}.", ""])
