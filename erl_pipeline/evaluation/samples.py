"""What became of every sample of a run: issued, generated, trained, or dropped, and for which reason."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import polars as pl

from erl_pipeline.config.distillation import DISTILLED
from erl_pipeline.stages.rollouts.counts import trajectories_by_role
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.lineage.trained_on import record_file, training_data, trajectory_files
from storage.runs.run import Run
from storage.tables.parquet import scan_files
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.training import SFT, scan_training_records
from storage.tables.trajectories import TRAJECTORIES

TRAINED = "trained"
NO_RECORD, NOT_GIVEN = "no_record", "not_given"
"""Why a sample has no row in a training record: there is no record (no update yet, or an update from before
records existed), or the update did not get the sample (a role that the method never trains)."""

_FILE = "file"
_PLACE = ("iteration", "role")


@dataclass(frozen=True)
class SampleCount:
    """Numbers of samples of one iteration and role.

    `issued` is what the sampling stage counted while it played, or what the manifest of a dataset says;
    `generated` counts the rows that exist. Every generated row is `trained` or `dropped`; `dropped` has the
    counts by reason. An agent's attempt is one sample, and what became of its first token sequence counts.
    """

    iteration: int
    role: str
    issued: int
    generated: int
    trained: int
    dropped: dict[str, int]


@dataclass(frozen=True)
class SampleReport:
    """The counts by iteration and role, and a sentence for every place where they do not add up."""

    counts: list[SampleCount]
    problems: list[str]


@dataclass
class _Sources:
    """The files with the samples of the iterations and the records of their updates."""

    issued: Counter[tuple[int, str]] = field(default_factory=Counter)
    samples: dict[Path, list[int]] = field(default_factory=dict)
    further: dict[Path, list[int]] = field(default_factory=dict)
    datasets: dict[Path, list[int]] = field(default_factory=dict)
    records: dict[Path, list[int]] = field(default_factory=dict)
    updates: list[tuple[int, Path, Manifest]] = field(default_factory=list)


def count_samples(store: ArtifactStore, run: Run, span: tuple[int, int] | None = None) -> SampleReport:
    """Follow every sample of a run to an update, or to the reason why it was dropped.

    Rows of a supervised dataset are counted as samples of the role `distilled`. Iterations are those of the
    run that trains: an offline run counts stored rollouts in the iteration that trains on them.
    """
    sources = _sources(store, run, span)
    records = _rows(
        scan_training_records, sources.records, ("trajectory_id", "sft_row_id", "role", "not_trained")
    )
    reinforced, supervised = (
        records.filter(pl.col("sft_row_id").is_null()),
        records.filter(pl.col("sft_row_id").is_not_null()),
    )
    scan, named = partial(scan_files, table=TRAJECTORIES), ("trajectory_id", "role")
    samples, further = _rows(scan, sources.samples, named), _rows(scan, sources.further, named)
    reinforced = reinforced.join(further, on=["iteration", "trajectory_id"], how="anti")
    dataset = _rows(partial(scan_files, table=SFT), sources.datasets, ("sft_row_id",)).with_columns(
        role=pl.lit(DISTILLED)
    )
    counted, strange = zip(
        _outcomes(samples, reinforced, "trajectory_id"),
        _outcomes(dataset, supervised, "sft_row_id"),
        strict=True,
    )
    outcomes = pl.concat(counted).collect()
    counts = _counts(outcomes, sources.issued)
    problems = [
        *_disagreements(counts),
        *[
            f"iteration {iteration}, {role}: of the rows in the training record {rows:,} "
            f"{'belongs' if rows == 1 else 'belong'} to no sample of the iteration"
            for iteration, role, rows in pl.concat(strange).collect().sort(*_PLACE).iter_rows()
        ],
        *(problem for each in sources.updates for problem in _update_problems(*each)),
    ]
    return SampleReport(counts, problems)


def _sources(store: ArtifactStore, run: Run, span: tuple[int, int] | None) -> _Sources:
    sources = _Sources()
    find = cache(store.find)
    given: dict[int, dict[str, None]] = {}
    for entry in run.stages():
        if entry.iteration is None or (span and not span[0] <= entry.iteration <= span[1]):
            continue
        manifest = find(entry.artifact_id)
        if entry.kind == "rollouts":
            given.setdefault(entry.iteration, {})[entry.artifact_id] = None
        if entry.kind != "checkpoint" or manifest is None:
            continue
        name = record_file(manifest)
        if name is None:
            continue
        path = store.open_file(manifest, name)
        sources.records.setdefault(path, []).append(entry.iteration)
        sources.updates.append((entry.iteration, path, manifest))
        data = training_data(find, [entry.artifact_id])
        # An update on a dataset trains its rows. The trajectories behind them are counted elsewhere.
        datasets = [held for each in data if (held := find(each)) is not None and held.tables(SFT.name)]
        for held in datasets:
            for file in held.tables(SFT.name) if held.artifact_id in manifest.inputs.values() else ():
                sources.datasets.setdefault(store.open_file(held, file.path), []).append(entry.iteration)
                sources.issued[entry.iteration, DISTILLED] += file.rows or 0
        if not datasets:
            given.setdefault(entry.iteration, {}).update(dict.fromkeys(data))
    for iteration, artifact_ids in given.items():
        listed = {each: None for one in artifact_ids for each in (one, *training_data(find, [one]))}
        for path in trajectory_files(store, find, listed):
            of_kind = sources.further if path.name == FURTHER_SEQUENCES else sources.samples
            of_kind.setdefault(path, []).append(iteration)
        for artifact_id in artifact_ids:
            manifest = find(artifact_id)
            if manifest is not None and manifest.kind == "rollouts":
                for role, count in trajectories_by_role(manifest.counters).items():
                    sources.issued[iteration, role] += count
    return sources


def _rows(
    scan: Callable[..., pl.LazyFrame],
    files: dict[Path, list[int]],
    columns: Sequence[str],
) -> pl.LazyFrame:
    """Columns of all rows, with the `iteration` that used each; a row that two iterations used is there
    twice."""
    uses = pl.LazyFrame(
        [(str(path), iteration) for path, iterations in files.items() for iteration in iterations],
        schema={_FILE: pl.String, "iteration": pl.Int64},
        orient="row",
    )
    return scan(list(files), path_column=_FILE).select(*columns, _FILE).join(uses, on=_FILE).drop(_FILE)


def _outcomes(samples: pl.LazyFrame, records: pl.LazyFrame, key: str) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """How many samples of each iteration and role have each `outcome`; and how many recorded rows belong to
    no sample."""
    named = ["iteration", key]
    samples = samples.unique(named, maintain_order=False)
    # A sample that several updates got counts as trained if one of them trained it.
    of_sample = records.group_by(named).agg(
        reason=pl.when(pl.col("not_trained").is_null().any())
        .then(pl.lit(TRAINED))
        .otherwise(pl.col("not_trained").first())
    )
    recorded = records.select("iteration").unique().with_columns(recorded=pl.lit(True))
    missing = pl.when(pl.col("recorded")).then(pl.lit(NOT_GIVEN)).otherwise(pl.lit(NO_RECORD))
    outcomes = (
        samples.join(of_sample, on=named, how="left")
        .join(recorded, on="iteration", how="left")
        .with_columns(outcome=pl.coalesce("reason", missing))
        .group_by(*_PLACE, "outcome")
        .agg(rows=pl.len())
    )
    strange = records.join(samples, on=named, how="anti").group_by(*_PLACE).agg(rows=pl.len())
    return outcomes, strange


def _counts(outcomes: pl.DataFrame, issued: Counter[tuple[int, str]]) -> list[SampleCount]:
    by_place: dict[tuple[int, str], dict[str, int]] = {place: {} for place in issued}
    for iteration, role, outcome, rows in outcomes.sort(*_PLACE, "outcome").iter_rows():
        by_place.setdefault((iteration, role), {})[outcome] = rows
    return [
        SampleCount(
            iteration,
            role,
            # Rows that no rollouts counted, such as replayed ones, count as issued.
            issued=issued.get((iteration, role), sum(found.values())),
            generated=sum(found.values()),
            trained=found.get(TRAINED, 0),
            dropped={reason: count for reason, count in found.items() if reason != TRAINED},
        )
        for (iteration, role), found in sorted(by_place.items())
    ]


def _disagreements(counts: Sequence[SampleCount]) -> list[str]:
    return [
        f"iteration {each.iteration}, {each.role}: {each.issued:,} issued and {each.generated:,} generated"
        for each in counts
        if each.issued != each.generated
    ]


def _update_problems(iteration: int, record: Path, manifest: Manifest) -> list[str]:
    """A sentence for each number in which an update's record differs from what the trainer counted."""
    rows = scan_training_records([record]).select(
        given=pl.len(),
        tokens=pl.col("trained_tokens").sum(),
    )
    found = rows.collect().row(0, named=True)
    counters = manifest.counters
    dropped = sum(count for name, count in counters.items() if name.startswith("dropped_"))
    # Sequences that train the environment's words have no row in the record.
    given = (
        counters.get("sequences", counters.get("rows", 0)) + dropped - counters.get("observed_sequences", 0)
    )
    tokens = counters.get("trained_tokens", 0) - counters.get("observed_tokens", 0)
    where = f"iteration {iteration}, checkpoint {manifest.artifact_id[:12]}"
    problems = []
    if found["given"] != given:
        problems.append(
            f"{where}: the trainer counted {given:,} sequences, its record has {found['given']:,}"
        )
    if found["tokens"] != tokens:
        problems.append(
            f"{where}: the trainer counted {tokens:,} trained tokens, its record {found['tokens']:,}"
        )
    return problems
