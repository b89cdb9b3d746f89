"""A run's memory at one of its versions, as the memory commands read it, and the outcomes of attempts with
and without it in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from command_line.selectors import the_one
from erl_pipeline.evaluation.memory_effect import MemoryArm, MemoryEffect
from erl_pipeline.policies.embedding import SentenceEmbedder
from erl_pipeline.runs.config import readable_config
from erl_pipeline.statistics import MeanEstimate
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory import chain
from storage.memory.entries import MemoryEntry, entry_of
from storage.memory.operations import Operation
from storage.memory.search import MemoryFilter
from storage.memory.standalone import STANDALONE
from storage.memory.versions import latest_version, memory_versions
from storage.memory.view import MemoryView, ReflectionMemory
from storage.runs.run import Run, RunStore


@dataclass(frozen=True)
class RunMemory:
    """The memory of a run as it was after an iteration, read from Parquet; only searches use its table."""

    store: ArtifactStore
    run: Run
    embedding_model: str
    version: str
    iteration: int
    """The iteration after which this version was made; 0 for the empty memory."""

    @cached_property
    def deltas(self) -> list[chain.Delta]:
        return chain.read_chain(self.store, self.version)[1]

    def table(self) -> MemoryView:
        """The view of this version in the LanceDB table, for searches."""
        embedder = SentenceEmbedder(self.embedding_model)
        return ReflectionMemory(self.store.uri, self.run.name, self.store, embedder).at(self.version)

    def held(self, wanted: MemoryFilter | None = None) -> pl.LazyFrame:
        """The entries of this version, or those of them that are wanted."""
        condition = wanted.condition() if wanted else ""
        entries = chain.held_entries(self.deltas)
        return entries.filter(pl.sql_expr(condition)) if condition else entries

    def find(self, identifier: str, among: Sequence[chain.Delta] | None = None) -> MemoryEntry:
        """An entry that the memory holds or held, in its last state, by its id or the beginning of one.

        `among` are the deltas that added this entry or changed any entry, if the caller knows them.

        Raises InputError for none or several.
        """
        deltas = self.deltas if among is None else among
        rows = chain.scan_entries(deltas).drop("vector", "embedding_model")
        found = rows.filter(pl.col("entry_id").str.starts_with(identifier)).collect()
        missing = (
            f"the memory of run {self.run.name} never held an entry {identifier}; "
            "`memory list` shows those that it holds."
        )
        entry_id = the_one(found["entry_id"].to_list(), identifier, "entries", missing)
        brought = entry_of(found.row(by_predicate=pl.col("entry_id") == entry_id, named=True))
        return chain.states(deltas).get(entry_id, brought)

    def operations(self, entry_id: str) -> pl.DataFrame:
        """Everything that memory versions did with an entry after it was added."""
        return chain.scan_changes(self.deltas).filter(pl.col("entry_id") == entry_id).collect()

    def removal(self, entry_id: str) -> Operation | None:
        """The operation that removed an entry; None for an entry that the memory holds."""
        return chain.removal_of(self.deltas, entry_id)


def open_memory(
    store_uri: str,
    run_name: str,
    iteration: int | None = None,
    artifacts: ArtifactStore | None = None,
    run: Run | None = None,
) -> RunMemory:
    """The memory of a run after an iteration, or its newest; with `artifacts` and `run` if they are open.

    Raises InputError for an unknown run or one without memory.
    """
    run = RunStore(store_uri).open(run_name) if run is None else run
    model = _embedding_model(run)
    version = latest_version(run, iteration)
    made = {each.artifact_id: each.iteration for each in memory_versions(run)}
    return RunMemory(artifacts or ArtifactStore(store_uri), run, model, version, made.get(version, 0))


def _embedding_model(run: Run) -> str:
    if run.config.get(STANDALONE):
        model: str = run.config["memory"]["embedding_model"]
        return model
    config = readable_config(run)
    retrieval = config.retrieval
    if retrieval is None:
        raise InputError(f"run {run.name} has no memory: its method has none, or says method.memory: off")
    named: str = retrieval.embedding_model
    return named


REFLECTIONS = "reflections"


def roles_in_words(searches: pl.DataFrame) -> str:
    """What gets memory in a run, in the plural: reflections, or such as first attempts."""
    roles = searches["role"].unique().sort().to_list()
    return " and ".join(f"{role.replace('_', ' ')}s" for role in roles) or REFLECTIONS


def effect_lines(effect: MemoryEffect, searching: str = REFLECTIONS) -> list[str]:
    """Lines that say whether memory helps: both subgroups, and their difference within groups. `searching` is
    what gets memory, see `roles_in_words`."""
    if effect.guided is None:
        return ["no attempt followed a search of the memory"]
    attempts = "attempts after a reflection" if searching == REFLECTIONS else searching
    lines = [_arm_line(f"{attempts} that could see memory", effect.guided)]
    if effect.free is None:
        return [
            *lines,
            "memory was withheld from none (method.memory.withhold), so there is nothing to compare with",
        ]
    lines.append(_arm_line(f"{attempts} without memory", effect.free))
    if effect.effect is None:
        return [*lines, "no group has both, so there is nothing to compare with"]
    return [
        *lines,
        f"effect of memory on reward: {interval(effect.effect)}, {effect.effect.count} compared with their "
        f"groups, of {effect.effect.tasks} tasks; the seed drew which {searching} see memory, so the effect "
        "is causal",
    ]


def credit_line(credit: MeanEstimate | None) -> str:
    """A line about an entry's credit: what the attempts that saw it gained."""
    if credit is None:
        return "credit: nothing to compare with, for no group has some that saw it and some without memory"
    return (
        f"credit: {interval(credit)}; {credit.count} that saw it were compared with those of their groups "
        f"from whom memory was withheld, at {credit.tasks} tasks, and shrunk to 0"
    )


def interval(estimate: MeanEstimate | None) -> str:
    """An estimate with its interval, such as `+0.120 (-0.020 to +0.260)`."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:+.3f} (one task: no interval)"
    return f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _arm_line(what: str, arm: MemoryArm) -> str:
    rate = arm.success
    successes = round(rate.value * rate.attempts)
    gain = "" if arm.gain is None else f"; over other first attempts at the same tasks {interval(arm.gain)}"
    return (
        f"{what}: {successes} of {rate.attempts} succeeded, {rate.value:.3f} "
        f"({rate.low:.3f} to {rate.high:.3f}){gain}"
    )
