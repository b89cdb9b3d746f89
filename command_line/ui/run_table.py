"""The table of a store's runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from command_line.ui.stored import RunStatus, Stored, StoredRun
from erl_pipeline.evaluation.history import CurvePoint
from storage.errors import StoreError
from storage.runs.run import flat_settings

SortKey = Literal["name", "method", "done", "score", "age"]
_MOST_SETTINGS = 4
_NOT_COMPARED = ("name", "iterations", "runner", "resources", "store", "metrics", "schema_version")
_SPARK_WIDTH, _SPARK_HEIGHT = 96, 24


@dataclass(frozen=True)
class RunLine:
    """A run in the table; `problem` says why the run or its configuration cannot be read."""

    name: str
    problem: str = ""
    method: str = ""
    environment: str = ""
    status: RunStatus = "other"
    done: int = 0
    total: int = 0
    score: CurvePoint | None = None
    spark: str = ""
    age: datetime | None = None
    settings: tuple[str, ...] = ()
    more_settings: int = 0


def run_lines(
    stored: Stored, words: str, method: str, status: str, sort: SortKey, *, rising: bool
) -> list[RunLine]:
    """The runs whose name contains `words`, of a method and a status if these are given."""
    opened: dict[str, StoredRun | str] = {}
    for name in stored.names():
        if words.lower() in name.lower():
            try:
                opened[name] = stored.run(name)
            except StoreError as error:
                opened[name] = str(error)
    differing = _differing([run for run in opened.values() if isinstance(run, StoredRun)])
    lines = [
        RunLine(name, problem=run) if isinstance(run, str) else _line(stored, run, differing.get(name, ()))
        for name, run in opened.items()
    ]
    lines = [line for line in lines if method in ("", line.method) and status in ("", line.status)]
    return sorted(lines, key=lambda line: _order(line, sort), reverse=not rising)


def varied_settings(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Setting -> run -> its value as JSON, for the settings that differ between runs.

    A run that lacks a setting is not among the runs of that setting.
    """
    flat = {name: _compared(config) for name, config in configs.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    return {
        key: {name: settings[key] for name, settings in flat.items() if key in settings}
        for key in keys
        if len({settings.get(key) for settings in flat.values()}) > 1
    }


def _compared(config: Mapping[str, Any]) -> dict[str, str]:
    settings = flat_settings(config)
    return {key: value for key, value in settings.items() if key.partition(".")[0] not in _NOT_COMPARED}


def _differing(runs: Sequence[StoredRun]) -> dict[str, list[str]]:
    """Run -> its values of the settings that differ between runs of its method and environment.

    Only runs of one method and environment are compared: between others nearly all settings differ.
    """
    kinds: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for run in runs:
        if run.config is not None:
            kind = run.config.method.type, run.config.environment.type
            kinds.setdefault(kind, {})[run.name] = run.run.config
    found: dict[str, list[str]] = {}
    for configs in kinds.values():
        for key, values in varied_settings(configs).items():
            for name, value in values.items():
                found.setdefault(name, []).append(f"{key}: {value}")
    return found


def _line(stored: Stored, run: StoredRun, settings: Sequence[str]) -> RunLine:
    config = run.config
    return RunLine(
        run.name,
        problem=run.problem,
        method="" if config is None else config.method.type,
        environment="" if config is None else config.environment.type,
        status=stored.status(run),
        done=run.done,
        total=run.total,
        score=run.curve[-1] if run.curve else None,
        spark=spark_points([point.success for point in run.curve]),
        age=run.last_recorded,
        settings=tuple(settings[:_MOST_SETTINGS]),
        more_settings=max(0, len(settings) - _MOST_SETTINGS),
    )


def spark_points(values: Sequence[float]) -> str:
    """Values in [0, 1] as the points of a small SVG line; empty for fewer than two."""
    if len(values) < 2:
        return ""
    step = _SPARK_WIDTH / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{_SPARK_HEIGHT - 2 - value * (_SPARK_HEIGHT - 4):.1f}"
        for index, value in enumerate(values)
    )


def _order(line: RunLine, sort: SortKey) -> tuple[Any, ...]:
    never = datetime.min.replace(tzinfo=UTC)
    value: Any = {
        "name": line.name,
        "method": line.method,
        "done": line.done,
        "score": -1.0 if line.score is None else line.score.success,
        "age": line.age or never,
    }[sort]
    return value, line.name
