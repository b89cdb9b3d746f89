"""Writing the result of a comparison: a JSON file, a Markdown page, and charts."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from erl_pipeline.comparison.measures import MEASURES, Axis, across_seeds, ends, seed_band
from erl_pipeline.comparison.result import REWARD, ArmResult, Result, TrainingNumber
from erl_pipeline.comparison.tables import (
    markdown,
    over_seeds,
    preface,
    seed_table,
    split_warning,
    tables,
    warnings,
)
from erl_pipeline.views.report.charts import Chart, Series, chart_svg
from storage.artifacts.manifest import code_version, package_versions
from storage.errors import StoreError

_LINES = 6
"""The most lines that can be told apart in a chart."""
_OVER_SEEDS = "mean over seeds, 95 %"

_AXES: tuple[tuple[str, Axis, str], ...] = (
    ("tokens", "generated_tokens", "generated tokens"),
    ("steps", "policy_steps", "policy steps"),
)


def charts(result: Result) -> dict[str, Chart]:
    """The charts by the names of their files, without suffix."""
    found: dict[str, Chart] = {}
    for number, arms in enumerate(_sets(result), start=1):
        ending = "" if number == 1 else f"_{number}"
        for name, axis, label in _AXES:
            if (success := _success(result, arms, axis, label)).series:
                found[f"success_by_{name}{ending}"] = success
        for key, lines in _numbers(result, arms).items():
            found[f"{key.replace('/', '_')}{ending}"] = lines
    for arm, each in result.arms.items():
        rewards = {
            name.removeprefix(f"{REWARD}/").replace("_", " "): number
            for name, number in each.training.items()
            if name.startswith(f"{REWARD}/")
        }
        if rewards:
            by_role = [_line(label, number) for label, number in rewards.items()]
            found[f"rewards_{arm}"] = Chart(f"Reward by role, {arm}", "iteration", _OVER_SEEDS, by_role)
    return found


def _sets(result: Result) -> list[list[str]]:
    """The arms in sets that fit into one chart, each with the baseline."""
    baseline = result.design.baseline
    first = [baseline] if baseline in result.arms else []
    others = [arm for arm in result.arms if arm != baseline]
    room = _LINES - len(first)
    return [[*first, *others[place : place + room]] for place in range(0, max(1, len(others)), room)]


def _success(result: Result, arms: Sequence[str], axis: Axis, label: str) -> Chart:
    series = []
    for place, arm in enumerate(arms, start=1):
        curves = list(result.arms[arm].curves.values())
        end = getattr(result.budgets, axis)
        if axis == "policy_steps" and min(curve[-1].policy_steps for curve in curves) < max(1, end):
            continue
        series.append(Series(arm, *seed_band(curves, axis, end), place))
    title = f"Success on {result.test_tasks} test tasks"
    return Chart(title, label, _OVER_SEEDS, series, (0.0, 1.0))


def _numbers(result: Result, arms: Sequence[str]) -> dict[str, Chart]:
    """A chart for each number of training that is not a reward, with the arms that have it."""
    by_name: dict[str, dict[str, TrainingNumber]] = {}
    for arm in arms:
        for name, number in result.arms[arm].training.items():
            if not name.startswith(f"{REWARD}/"):
                by_name.setdefault(name, {})[arm] = number
    return {
        name: Chart(
            f"In training: {next(iter(lines.values())).label}",
            "iteration",
            _OVER_SEEDS,
            [_line(arm, lines[arm], place) for place, arm in enumerate(arms, start=1) if arm in lines],
        )
        for name, lines in by_name.items()
    }


def _line(label: str, number: TrainingNumber, style: int | None = None) -> Series:
    """The line of a number's mean over seeds by iteration, with its interval."""
    iterations = sorted({iteration for values in number.by_seed.values() for iteration in values})
    summaries = [
        across_seeds([values[iteration] for values in number.by_seed.values() if iteration in values])
        for iteration in iterations
    ]
    return Series(label, iterations, *ends(summaries), style)


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
        "test_split": _split(result),
        "search": _search(result),
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
    opened = split_warning(result)
    parts = [
        *([f"**{opened}**"] if opened else []),
        f"# Comparison {result.design.name}",
        preface(result),
        *warnings(result),
    ]
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


def _split(result: Result) -> dict[str, Any] | None:
    if result.split is None:
        return None
    return {
        "settings_digest": result.split.use.settings_digest,
        "artifacts": list(result.split.use.test_tasks),
        "opened_before": [each.model_dump(mode="json", exclude={"tasks"}) for each in result.split.before],
    }


def _search(result: Result) -> dict[str, Any] | None:
    search, asked = result.search, result.design.search
    if search is None or asked is None:
        return None
    return {
        "budget": asked.budget,
        "seeds": asked.seeds,
        "measure": search.measure,
        "generated_tokens": search.tokens,
        "read_off_at": {"generated_tokens": search.read_off_at},
        "trials": [{**asdict(trial), "score": trial.score} for trial in search.trials],
    }


def _arm(arm: ArmResult) -> dict[str, Any]:
    summaries = {name: over_seeds(arm, name) for name in ("start", *MEASURES)}
    return {
        "seeds": {
            str(seed): {"measures": asdict(arm.measures[seed]), "curve": [asdict(point) for point in curve]}
            for seed, curve in arm.curves.items()
        },
        "summary": {name: None if each is None else asdict(each) for name, each in summaries.items()},
        "over_seeds_and_tasks": dict(arm.over_seeds_and_tasks),
        "training": {name: asdict(number) for name, number in arm.training.items()},
    }
