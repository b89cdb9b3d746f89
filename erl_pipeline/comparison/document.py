"""Writing the result of a comparison: a JSON file, a Markdown page, and charts."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from erl_pipeline.comparison.charts import charts
from erl_pipeline.comparison.measures import MEASURES
from erl_pipeline.comparison.result import ArmResult, Result
from erl_pipeline.comparison.tables import markdown, preface, seed_table, tables, warnings
from erl_pipeline.evaluation.seeds import across_seeds
from erl_pipeline.views.report.charts import chart_svg
from storage.artifacts.manifest import code_version, package_versions
from storage.errors import StoreError

DOCUMENT, PAGE = "comparison.json", "comparison.md"


def document(result: Result) -> dict[str, Any]:
    """The whole result, as JSON values."""
    design = result.design
    settings = {run.arm: run.config.model_dump(mode="json") for run in reversed(design.runs)}
    return {
        "name": design.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": platform.processor() or platform.machine(), "cpus": os.cpu_count()},
        "python": platform.python_version(),
        "code_version": code_version(),
        "packages": package_versions(),
        "base": design.base,
        "iterations": design.iterations,
        "seeds": list(design.seeds),
        "baseline": design.baseline,
        "budgets": asdict(result.budgets),
        "test_tasks": result.test_tasks,
        "comparisons": result.comparisons,
        "overrides": {arm.name: list(arm.overrides) for arm in design.arms},
        "settings": settings,
        "arms": {name: _arm(each) for name, each in result.arms.items()},
        "differences": {name: [asdict(row) for row in rows] for name, rows in result.differences.items()},
        "failures": [asdict(each) for each in result.failures],
        "warnings": warnings(result),
    }


def page(result: Result) -> str:
    """The result as Markdown."""
    parts = [f"# Comparison {result.design.name}", preface(result), *warnings(result)]
    parts += [markdown(table) for table in tables(result)]
    if result.arms:
        parts.append(markdown(seed_table(result)))
    return "\n\n".join(parts) + "\n"


def write(result: Result, folder: Path) -> list[Path]:
    """Write all files of a result into a folder; return their paths.

    Raises StoreError when the folder cannot be written.
    """
    files = {
        DOCUMENT: json.dumps(document(result), indent=1, allow_nan=False) + "\n",
        PAGE: page(result),
        **{f"{name}.svg": chart_svg(each) + "\n" for name, each in charts(result).items()},
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the comparison cannot be written to {folder}: {error.strerror}") from error
    return [folder / name for name in files]


def _arm(arm: ArmResult) -> dict[str, Any]:
    figures = list(arm.measures.values())
    return {
        "seeds": {
            str(seed): {"measures": asdict(arm.measures[seed]), "curve": [asdict(point) for point in curve]}
            for seed, curve in arm.curves.items()
        },
        "summary": {
            name: asdict(across_seeds([getattr(each, name) for each in figures]))
            for name in ("start", *MEASURES)
        },
        "training": {name: asdict(number) for name, number in arm.training.items()},
    }
