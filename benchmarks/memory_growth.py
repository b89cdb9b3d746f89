"""A reflection memory of a million entries: the time and memory for searching it and adding to it.

    python benchmarks/memory_growth.py --folder FOLDER [--entries 1000000] [--stage STAGE] [--write]

The entries are committed to a real store, 10,000 in each version, with the same code as in a run. Their texts
are generated, and so are their embeddings: vectors of 384 dimensions and unit length, in 2,000 clusters of a
32-dimensional subspace, with noise in all dimensions. Each stage is a separate process, and continues where
the one before ended; without `--stage` all are run. FOLDER takes about 5 GB for a million entries.

- `generate` commits the versions as artifacts;
- `build` makes the table with its indexes from them, as a new machine would;
- `search` compares the index with exact search, by recall and by time, and times a batch of exact searches;
- `add` commits 10,000 more entries, then 50 more, updates the table after each, and searches it again. Then
  it does what an iteration does: 50 new texts, 50 that exist already, evidence on 128 entries of all ages.

`--stage report` shows what was measured; with `--write` it goes into benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from measurements import (
    add_write_arguments,
    describe_machine,
    parse_arguments,
    write_results,
    write_section,
)
from workloads.long_history import WORDS

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.chain import ENTRIES_FILE
from storage.memory.changes import MemoryLimits, plan_change, write_change
from storage.memory.credit import Evidence
from storage.memory.entries import MemoryEntry, write_embedded
from storage.memory.search import MemoryFilter, Scoring
from storage.memory.versions import EMPTY_MEMORY, PARENT_INPUT, latest_version, memory_versions
from storage.memory.view import MemoryHit, MemoryView, ReflectionMemory
from storage.runs.run import Run, RunStore

STAGES = ("generate", "build", "search", "add")
NAME = "growth"
VERSION_ENTRIES = 10_000
STAGE = "index_memory"
DIMENSION, CLUSTERS, FEATURES = 384, 2_000, 32
QUERIES, EXACT_QUERIES, BATCH = 100, 50, 64
NEW, SEEN = 50, 128
TASK_TYPES, ENVIRONMENTS = 20, 3

Vectors = npt.NDArray[np.float32]


class GeneratedEmbedder:
    """Looks up the vectors of texts that were generated with them, in place of a model."""

    model = embedding_model = "generated"

    def __init__(self, vectors: dict[str, Vectors]) -> None:
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self._vectors[text] for text in texts])


def sample(count: int, seed: int) -> tuple[Vectors, npt.NDArray[np.int64]]:
    """Vectors and the cluster of each; clusters are the same for every seed."""
    fixed, drawn = np.random.default_rng(0), np.random.default_rng([1, seed])
    centres = fixed.normal(size=(CLUSTERS, FEATURES))
    projection = fixed.normal(size=(FEATURES, DIMENSION))
    clusters = drawn.integers(0, CLUSTERS, count)
    features = centres[clusters] + 0.6 * drawn.normal(size=(count, FEATURES))
    vectors = features @ projection + 0.8 * drawn.normal(size=(count, DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), clusters


def entries_of(number: int, count: int, version: str) -> tuple[list[MemoryEntry], Vectors]:
    """The entries of one version."""
    vectors, clusters = sample(count, number)
    stream = np.random.default_rng([2, number])
    words = stream.integers(0, len(WORDS), (count, 24))
    credits = 2 * stream.random(count) - 1
    entries = []
    for place in range(count):
        text = [WORDS[word] for word in words[place]]
        entries.append(
            MemoryEntry(
                entry_id=f"m-{number:04d}-{place:05d}",
                kind="reflection",
                text=" ".join(text[:12]),
                task_type=f"type-{clusters[place] % TASK_TYPES:02d}",
                task_text=" ".join(text[12:20]),
                feedback=" ".join(text[20:]),
                key_text=" ".join(text[12:]),
                credit=float(credits[place]),
                source_trajectory_id=None,
                iteration=number,
                last_iteration=number,
                policy_version="",
                parent_entry_ids=(),
                memory_version=version,
                environment=f"environment-{clusters[place] % ENVIRONMENTS}",
            )
        )
    return entries, vectors


def commit(store: ArtifactStore, run: Run, number: int, count: int) -> str:
    """Commit one version after the newest."""
    parent = latest_version(run)
    inputs = {} if parent == EMPTY_MEMORY else {PARENT_INPUT: parent}
    recipe = Recipe(STAGE, 1, {"number": number, "entries": count}, inputs, 0, kind="memory")
    entries, vectors = entries_of(number, count, recipe.artifact_id)
    with store.create(recipe, run=run.name, iteration=number) as staging:
        write_embedded(staging.path / ENTRIES_FILE, entries, vectors, GeneratedEmbedder.embedding_model)
        staging.commit(memory_version=recipe.artifact_id)
    run.record(number, STAGE, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=0.0)
    return recipe.artifact_id


def open_store(folder: Path) -> tuple[ArtifactStore, Run]:
    uri = str(folder / "store")
    runs = RunStore(uri)
    run = (
        runs.open(NAME)
        if NAME in runs.list()
        else runs.create(NAME, {"memory": {"embedding_model": "generated"}})
    )
    return ArtifactStore(uri), run


def open_memory(store: ArtifactStore, vectors: dict[str, Vectors]) -> ReflectionMemory:
    return ReflectionMemory(store.uri, NAME, store, GeneratedEmbedder(vectors))


def generate(folder: Path, entries: int) -> dict[str, float]:
    store, run = open_store(folder)
    started = time.perf_counter()
    done = len(memory_versions(run))
    for number in range(done, entries // VERSION_ENTRIES):
        commit(store, run, number, VERSION_ENTRIES)
        print(f"version {number + 1}, {time.perf_counter() - started:.0f} s", flush=True)
    files = (folder / "store" / "artifacts").rglob("*.parquet")
    return {
        "generate_s": time.perf_counter() - started,
        "parquet_mb": sum(f.stat().st_size for f in files) / 1e6,
    }


def build(folder: Path, entries: int) -> dict[str, float]:
    store, run = open_store(folder)
    continued = (folder / "store" / "memory").exists()
    started = time.perf_counter()
    view = open_memory(store, {}).at(latest_version(run))
    seconds = time.perf_counter() - started
    return {"continued_s" if continued else "build_s": seconds, "entries": view.count()}


def search(folder: Path, entries: int) -> dict[str, Any]:
    store, run = open_store(folder)
    vectors, clusters = sample(QUERIES, 10**6)
    texts = [f"query {number}" for number in range(QUERIES)]
    memory = open_memory(store, dict(zip(texts, vectors, strict=True)))
    started = time.perf_counter()
    view = memory.at(latest_version(run))
    found: dict[str, Any] = {"open_s": time.perf_counter() - started, "index": view.vector_index}
    found["entries"] = view.count()
    found["load"] = os.getloadavg()[0]
    found["machine"] = (
        f"{datetime.now(UTC).date().isoformat()}, {len(os.sched_getaffinity(0))} cores, Python "
        f"{platform.python_version()}, lancedb {metadata.version('lancedb')}"
    )
    types = [f"type-{cluster % TASK_TYPES:02d}" for cluster in clusters]
    other_types = [f"type-{(cluster + 7) % TASK_TYPES:02d}" for cluster in clusters]
    filters: dict[str, Callable[[int], dict[str, Any]]] = {
        "none": lambda _: {},
        "its task type": lambda number: {"task_type": types[number]},
        "its task type, credit >= 0": lambda number: {"task_type": types[number], "minimum_credit": 0.0},
        "another task type": lambda number: {"task_type": other_types[number]},
        "another task type, credit >= 0.8": lambda number: {
            "task_type": other_types[number],
            "minimum_credit": 0.8,
        },
        "another environment": lambda number: {
            "environment": f"environment-{(clusters[number] + 1) % ENVIRONMENTS}"
        },
        "iterations of the last tenth": lambda _: {"first_iteration": int(0.9 * entries / VERSION_ENTRIES)},
    }
    found["searches"] = {}
    for name, narrowed in filters.items():
        for number in range(5):  # the first searches read the index from disk
            view.search([texts[number]], 10, MemoryFilter(**narrowed(number)), exact=False)
        fast, fast_s = timed(view, texts, narrowed, exact=False)
        exact, exact_s = timed(view, texts[:EXACT_QUERIES], narrowed, exact=True)
        recalls = [recall(mine, true) for mine, true in zip(fast, exact, strict=False)]
        found["searches"][name] = {
            "recall_at_10": statistics.mean(recalls),
            "median_ms": statistics.median(fast_s) * 1e3,
            "p95_ms": float(np.quantile(fast_s, 0.95)) * 1e3,
            "exact_median_ms": statistics.median(exact_s) * 1e3,
        }
        print(name, found["searches"][name], flush=True)
    words = []
    stream = np.random.default_rng(3)
    for number in range(QUERIES // 2):
        text = " ".join(WORDS[word] for word in stream.integers(0, len(WORDS), 3))
        began = time.perf_counter()
        view.search([text], 10, MemoryFilter(types[number]), mode="text")
        words.append(time.perf_counter() - began)
    found["text_median_ms"] = statistics.median(words) * 1e3
    began = time.perf_counter()
    view.search(texts[:BATCH], 10)
    found["batch_s"] = time.perf_counter() - began
    return found


def timed(
    view: MemoryView, texts: Sequence[str], narrowed: Callable[[int], dict[str, Any]], exact: bool
) -> tuple[list[list[MemoryHit]], list[float]]:
    found, seconds = [], []
    for number, text in enumerate(texts):
        began = time.perf_counter()
        found.append(view.search([text], 10, MemoryFilter(**narrowed(number)), exact=exact)[0])
        seconds.append(time.perf_counter() - began)
    return found, seconds


def recall(mine: Sequence[MemoryHit], true: Sequence[MemoryHit]) -> float:
    wanted = {hit.entry.entry_id for hit in true}
    return len(wanted & {hit.entry.entry_id for hit in mine}) / len(wanted)


def add(folder: Path, entries: int) -> dict[str, float]:
    store, run = open_store(folder)
    vectors, clusters = sample(QUERIES, 10**6)
    texts = [f"query {number}" for number in range(QUERIES)]
    memory = open_memory(store, dict(zip(texts, vectors, strict=True)))
    memory.at(latest_version(run))
    found: dict[str, float] = {}
    for count in (VERSION_ENTRIES, 50):
        number = len(memory_versions(run))
        started = time.perf_counter()
        version = commit(store, run, number, count)
        found[f"commit_{count}_s"] = time.perf_counter() - started
        started = time.perf_counter()
        view = memory.at(version)
        found[f"index_{count}_s"] = time.perf_counter() - started
    for name, narrowed in (
        ("none", lambda _: {}),
        ("type", lambda number: {"task_type": f"type-{clusters[number] % TASK_TYPES:02d}"}),
    ):
        _, seconds = timed(view, texts, narrowed, exact=False)
        found[f"search_{name}_ms"] = statistics.median(seconds) * 1e3
    # By now a hundredth of the table is not in its indexes, so this iteration updates them.
    found["maintenance_s"] = iterate(store, run, memory, entries // VERSION_ENTRIES)["iteration_index_s"]
    return found | iterate(store, run, memory, entries // VERSION_ENTRIES)


def iterate(store: ArtifactStore, run: Run, memory: ReflectionMemory, versions: int) -> dict[str, float]:
    """Change the memory as an iteration does, and retrieve from it as the next one does. The evidence is on
    entries of the first `versions` versions."""
    number, parent = len(memory_versions(run)), latest_version(run)
    recipe = Recipe(STAGE, 1, {"number": number}, {PARENT_INPUT: parent}, 0, kind="memory")
    version = recipe.artifact_id
    new, vectors = entries_of(number, NEW, version)
    again = [replace(each, entry_id=f"again-{each.entry_id}") for each in entries_of(7, NEW, version)[0]]
    seen = [Evidence(f"m-{place % versions:04d}-{place:05d}", 2, 0.5, 2) for place in range(SEEN)]
    embedder = GeneratedEmbedder({each.key_text: vector for each, vector in zip(new, vectors, strict=True)})
    view = memory.at(parent)
    marks = [time.perf_counter()]
    change = plan_change(
        view, [*new, *again], seen, MemoryLimits(), embedder, iteration=number, version=version
    )
    marks.append(time.perf_counter())
    with store.create(recipe, run=run.name, iteration=number) as staging:
        write_change(staging.path, change, embedder)
        staging.commit(memory_version=version)
    run.record(number, STAGE, version, kind=recipe.kind, reused=False, seconds=0.0)
    marks.append(time.perf_counter())
    view = memory.at(version)
    marks.append(time.perf_counter())
    assert (len(change.entries), len(change.operations)) == (NEW, NEW + SEEN)
    scoring = Scoring(credit_weight=1.0, support_weight=0.1)
    view.retrieve([f"query {number}" for number in range(BATCH)], 1, scoring)
    marks.append(time.perf_counter())
    names = ("iteration_plan_s", "iteration_commit_s", "iteration_index_s", "iteration_retrieve_s")
    return {name: end - start for name, start, end in zip(names, marks, marks[1:], strict=False)}


def report(figures: dict[str, dict[str, Any]]) -> str:
    """The section of the README."""
    generated, built, searched, added = (figures[stage] for stage in STAGES)
    lines = [
        f"{searched['entries']:,} entries of {DIMENSION} dimensions in versions of {VERSION_ENTRIES:,}; "
        f"index {searched['index']}. {searched['machine']}. Load average when the searches began: "
        f"{searched['load']:.1f}.",
        "",
        "| filter | recall@10 | median ms | 95th percentile ms | exact search, median ms |",
        "|---|---|---|---|---|",
    ]
    for name, row in searched["searches"].items():
        lines.append(
            f"| {name} | {row['recall_at_10']:.3f} | {row['median_ms']:.1f} | {row['p95_ms']:.1f} "
            f"| {row['exact_median_ms']:.0f} |"
        )
    lines += [
        "",
        f"- Words with a task type: median {searched['text_median_ms']:.1f} ms.",
        f"- {BATCH} exact searches without a filter in one call, as an iteration asks: "
        f"{searched['batch_s']:.1f} s.",
        f"- Opening a sealed table in a new process (all its files are hashed): {searched['open_s']:.1f} s.",
        f"- Adding 10,000 entries: {added['commit_10000_s']:.1f} s to write and commit the Parquet, "
        f"{added['index_10000_s']:.1f} s to bring table and indexes up to it; adding 50: "
        f"{added['commit_50_s']:.2f} s and {added['index_50_s']:.2f} s. Searches with these new entries: "
        f"median {added['search_none_ms']:.1f} ms, by task type {added['search_type_ms']:.1f} ms.",
        f"- An iteration's change ({NEW} new texts, {NEW} that are there, evidence on {SEEN} entries): "
        f"{added['iteration_plan_s']:.2f} s to find what there is, {added['iteration_commit_s']:.2f} s to "
        f"write and commit, {added['iteration_index_s']:.2f} s to bring table and indexes up to it. {BATCH} "
        f"retrievals by similarity, credit and support: {added['iteration_retrieve_s']:.1f} s. Bringing the "
        f"indexes up to a hundredth of the table that is new or changed, once in a while: "
        f"{added['maintenance_s']:.0f} s.",
        f"- Making table and indexes anew from {generated['parquet_mb']:,.0f} MB of Parquet: "
        + (f"{built['build_s']:.0f} s." if "build_s" in built else "not measured in one go."),
        "- Peak resident memory, MB: "
        + ", ".join(f"{stage} {figures[stage]['peak_mb']:,.0f}" for stage in STAGES)
        + ".",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--stage", choices=[*STAGES, "report"], help="report: only show what was measured")
    add_write_arguments(parser)
    arguments = parse_arguments(parser)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results = arguments.folder / "figures.json"
    if arguments.stage is None:
        for stage in STAGES:
            words = ["--folder", str(arguments.folder), "--entries", str(arguments.entries), "--stage", stage]
            subprocess.run([sys.executable, __file__, *words], check=True)
    elif arguments.stage != "report":
        stages: dict[str, Callable[[Path, int], dict[str, Any]]] = {
            "generate": generate,
            "build": build,
            "search": search,
            "add": add,
        }
        figures = json.loads(results.read_text()) if results.exists() else {}
        found = stages[arguments.stage](arguments.folder, arguments.entries)
        found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        figures[arguments.stage] = found
        results.write_text(json.dumps(figures, indent=1))
        print(json.dumps({arguments.stage: found}, indent=1))
    figures = json.loads(results.read_text())
    if arguments.stage in (None, "report"):
        section = report(figures)
        print(section)
        if arguments.write:
            write_results("memory_growth", describe_machine(1, ["lancedb"]), figures)
            write_section("memory_growth", section)


if __name__ == "__main__":
    main()
