"""The tables of the report: iterations, cost by stage, artifacts, versions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from erl_pipeline.evaluation.history import StageRecord, of_stage
from erl_pipeline.views.report.charts import short_number
from erl_pipeline.views.report.headline import duration, percent


@dataclass(frozen=True)
class Table:
    """Cells as text, the first column naming the row. `shares` in [0, 1] draws a bar beside each row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    shares: Sequence[float] = ()


@dataclass(frozen=True)
class InputLink:
    """An input of an artifact; `listed` where the table has a row for it."""

    name: str
    artifact_id: str
    listed: bool


@dataclass(frozen=True)
class ArtifactRow:
    iteration: int
    stage: str
    artifact_id: str
    inputs: Sequence[InputLink]


_ITERATION_COLUMNS = (
    ("first attempts", "generate_rollouts", "success_first", percent),
    ("second attempts", "generate_rollouts", "success_second", percent),
    ("retried", "generate_rollouts", "second_attempts", short_number),
    ("memory", "index_memory", "entries", short_number),
    ("distilled", "build_distillation", "sft_rows", short_number),
    ("generated tokens", "generate_rollouts", "generated_tokens", short_number),
    ("held-out success", "evaluate", "greedy_success", percent),
)


def iteration_table(history: Sequence[StageRecord]) -> Table:
    """One row per iteration; columns that no iteration has are left out."""
    by_place = {(record.iteration, record.stage): record for record in history}
    stages = {"generate_rollouts", "evaluate"}
    iterations = sorted({record.iteration for record in history if record.stage in stages})

    def cell(iteration: int, stage: str, name: str) -> float | None:
        record = by_place.get((iteration, stage))
        return None if record is None else record.number(name)

    shown = [
        (title, stage, name, write)
        for title, stage, name, write in _ITERATION_COLUMNS
        if any(cell(iteration, stage, name) is not None for iteration in iterations)
    ]
    seconds: defaultdict[int, float] = defaultdict(float)
    for record in history:
        seconds[record.iteration] += record.seconds
    rows = []
    for iteration in iterations:
        values = [(cell(iteration, stage, name), write) for _, stage, name, write in shown]
        numbers = ["" if value is None else write(value) for value, write in values]
        rows.append([str(iteration), *numbers, f"{seconds[iteration]:.1f}"])
    return Table(["iteration", *(title for title, *_ in shown), "seconds"], rows)


def evaluation_table(history: Sequence[StageRecord]) -> Table:
    """The first and the last evaluation on the held-out tasks, and those made on request on other tasks.

    Rates are given with their 95 % intervals; columns that no evaluation has are left out.
    """
    held_out = of_stage(history, "evaluate")
    requested = of_stage(history, "evaluate_on_request")
    named = [("held-out tasks", record) for record in held_out[:1] + held_out[1:][-1:]]
    named += [(f"on request, {record.manifest.artifact_id[:12]}", record) for record in requested]
    rates = [
        ("greedy first attempt", "greedy_success"),
        ("sampled first attempts", "sampled_success"),
        ("with a reflection", "success_with_reflection"),
    ]
    shown = [
        (title, name) for title, name in rates if any(record.number(name) is not None for _, record in named)
    ]
    rows = [
        [tasks, str(record.iteration), *(_with_interval(record, name) for _, name in shown)]
        for tasks, record in named
    ]
    return Table(["tasks", "after iteration", *(title for title, _ in shown)], rows)


def stage_table(history: Sequence[StageRecord]) -> Table:
    """What each stage cost in all, in the order the stages first ran."""
    by_stage: defaultdict[str, list[StageRecord]] = defaultdict(list)
    for record in history:
        by_stage[record.stage].append(record)
    total = sum(record.seconds for record in history)
    rows, shares = [], []
    for stage, records in by_stage.items():
        seconds = sum(record.seconds for record in records)
        tokens = sum(_tokens(record) for record in records)
        rows.append(
            [
                stage,
                str(len(records)),
                str(sum(record.reused for record in records)),
                duration(seconds),
                f"{seconds / len(records):.2f} s",
                short_number(tokens) if tokens else "",
                f"{tokens / seconds:,.0f}" if tokens and seconds else "",
            ]
        )
        shares.append(seconds / total if total else 0.0)
    columns = ["stage", "artifacts", "reused", "time", "each", "tokens", "tokens/s"]
    return Table(columns, rows, shares)


def artifact_rows(history: Sequence[StageRecord]) -> list[ArtifactRow]:
    """Every artifact of the run with what it was made from."""
    listed = {record.manifest.artifact_id for record in history}
    return [
        ArtifactRow(
            record.iteration,
            record.stage,
            record.manifest.artifact_id,
            [InputLink(name, key, key in listed) for name, key in record.manifest.inputs.items()],
        )
        for record in history
    ]


def version_rows(history: Sequence[StageRecord]) -> list[tuple[str, str]]:
    """Code, machine and packages as manifests record them; several values where artifacts differ."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for record in history:
        manifest = record.manifest
        found["code"].add(manifest.code_version)
        for name, value in [*manifest.environment.items(), *manifest.packages.items()]:
            found[name].add(str(value))
    return [(name, ", ".join(sorted(values))) for name, values in found.items()]


def _with_interval(record: StageRecord, name: str) -> str:
    rate = record.number(name)
    if rate is None:
        return ""
    low, high = record.required_number(f"{name}_low"), record.required_number(f"{name}_high")
    return f"{percent(rate)} ({100 * low:.0f} to {100 * high:.0f})"


def _tokens(record: StageRecord) -> float:
    """Tokens that a stage generated or trained on; the sum of shards is counted at the shards."""
    if record.stage == "generate_rollouts":
        return 0.0
    return record.number("generated_tokens") or record.number("trained_tokens") or 0.0
