"""What a long history costs: a store of 1,000,000 generated trajectories in 1,000 iterations.

The store is written by `workloads/long_history.py`. These are measured, each in new processes:

- reading the rewards of the last iteration,
- two lineage questions over all rows, and all that one memory entry reached,
- planning a replay: finding the manifests of all artifacts of an iteration from the ledger,
- the bookkeeping of one iteration (lock, find, commit, ledger) after 10 iterations and after all.

    python benchmarks/history_growth.py --runs 5 --write

The store, about 0.5 GB, is written into a temporary folder and removed; with `--store` it is kept and used
again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time

import polars as pl
from measurements import (
    Figures,
    add_run_alone_arguments,
    add_write_arguments,
    as_markdown,
    as_text,
    describe_machine,
    median_and_range,
    parse_arguments,
    process_memory_and_cpu,
    publish,
    run_alone,
)
from workloads.long_history import FIRST_TASK, RUN, build

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.lineage.graph import ArtifactGraph
from storage.lineage.questions import policies_trained_on, rows_using_memory
from storage.lineage.reach import downstream
from storage.lineage.rows import LineageRows
from storage.runs.run import Run, RunStore
from storage.tables.trajectories import scan_trajectories

NAME = "history_growth"
BOOKKEEPING_STAGES = (
    "rollout_shard",
    "generate_rollouts",
    "index_memory",
    "update_policy",
    "build_distillation",
    "fine_tune",
    "evaluate",
)
BOOKKEEPING_REPEATS, BOOKKEEPING_RUNS = 20, 5
SHORT = 10
"""Number of iterations of the short history, with which the long one is compared."""
TITLES = {
    "last_rewards": "rewards of the last iteration",
    "rows_using_memory": "every row that used a memory entry",
    "policies_trained_on": "every policy that trained on a task",
    "downstream": "all that a memory entry reached (rows, policies, scores)",
    "replay_plan": "planning a replay of an iteration in the middle",
}


def bookkeeping(store_uri: str) -> Figures:
    """Median seconds of an iteration besides its stages' own work, and seconds to open the run."""
    started = time.perf_counter()
    run = RunStore(store_uri).open(RUN)
    entries = run.stages()
    opened = time.perf_counter() - started
    store = ArtifactStore(store_uri)
    previous = entries[-1].artifact_id
    seconds = []
    for repeat in range(BOOKKEEPING_REPEATS):
        started = time.perf_counter()
        with run.lock():
            for stage in BOOKKEEPING_STAGES:
                recipe = Recipe(stage, 1, {"probe": repeat, "of": len(entries)}, {"checkpoint": previous}, 0)
                if store.find(recipe.artifact_id, stage) is not None:
                    raise RuntimeError("the probe was committed before; use a fresh store")
                with store.create(recipe, run=RUN, iteration=None) as staging:
                    (staging.path / "bytes").write_bytes(b"probe")
                    staging.commit()
                run.record(
                    None,
                    stage,
                    recipe.artifact_id,
                    kind=recipe.kind,
                    key=recipe.artifact_id,
                    reused=False,
                    seconds=0.0,
                )
        seconds.append(time.perf_counter() - started)
    return {"bookkeeping": statistics.median(seconds), "opening": opened, "entries": float(len(entries))}


def last_rewards(store: ArtifactStore, run: Run) -> int:
    iteration = max(entry.iteration or 0 for entry in run.stages())
    shards = [
        entry.artifact_id
        for entry in run.stages()
        if entry.iteration == iteration and entry.stage == "rollout_shard"
    ]
    files = [store.open(shard).path("trajectories.parquet") for shard in shards]
    return scan_trajectories(files).select(pl.col("reward")).collect().height


def replay_plan(store: ArtifactStore, run: Run) -> int:
    entries = run.stages()
    middle = max(entry.iteration or 0 for entry in entries) // 2
    plan = [entry for entry in entries if entry.iteration == middle]
    manifests = [store.find(entry.artifact_id, entry.stage) for entry in plan]
    return sum(manifest is not None for manifest in manifests)


def _some_entry(store: ArtifactStore, run: Run) -> str:
    """A memory entry from the middle of the history."""
    # Entries that `bookkeeping` wrote have no iteration.
    versions = [entry for entry in run.stages() if entry.stage == "index_memory" and entry.iteration]
    file = store.open(versions[len(versions) // 2].artifact_id).path("entries.parquet")
    return str(pl.read_parquet(file, columns=["entry_id"])["entry_id"][0])


def ask(name: str, store_uri: str) -> Figures:
    """Ask one question, and measure the time from an unopened store to the answer, and the peak memory."""
    if name == "bookkeeping":
        return bookkeeping(store_uri)
    entry = _some_entry(ArtifactStore(store_uri), RunStore(store_uri).open(RUN))
    started, cpu_before = time.perf_counter(), time.process_time()
    store, run = ArtifactStore(store_uri), RunStore(store_uri).open(RUN)
    if name == "last_rewards":
        answer = last_rewards(store, run)
    elif name == "replay_plan":
        answer = replay_plan(store, run)
    elif name == "downstream":
        answer = len(downstream(store, None, entry).things)
    else:
        manifests = list(store.list())
        rows = LineageRows(store, manifests)
        if name == "rows_using_memory":
            answer = rows_using_memory(rows, entry).height
        else:
            answer = policies_trained_on(rows, ArtifactGraph(manifests), FIRST_TASK).height
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_before
    figures = {"seconds": seconds, "cpu_seconds_asking": cpu, "answer": float(answer)}
    return figures | process_memory_and_cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000, help="trajectories of an iteration")
    parser.add_argument("--runs", type=int, default=5, help="processes that ask each question")
    parser.add_argument("--store", help="folder of the history, which is written if missing")
    add_write_arguments(parser)
    add_run_alone_arguments(parser)
    given = parse_arguments(parser)
    if given.contender:
        given.figures.write_text(json.dumps(ask(given.contender, given.store)))
        return
    machine = describe_machine(1, ["polars", "pyarrow", "pydantic"])
    folder = given.store or tempfile.mkdtemp(prefix="history-growth-")
    short, long = f"{folder}/short", f"{folder}/long"
    answers: dict[str, list[Figures]] = {name: [] for name in TITLES}
    around: dict[int, list[Figures]] = {SHORT: [], given.iterations: []}
    try:
        build(short, SHORT, given.rows)
        build(long, given.iterations, given.rows)
        for _ in range(given.runs):
            for name, found in answers.items():
                found.append(run_alone(name, ["--store", long], __file__))
        # Bookkeeping comes last, since what it commits would be in the answers.
        for _ in range(max(BOOKKEEPING_RUNS, given.runs)):
            for iterations, store in ((SHORT, short), (given.iterations, long)):
                around[iterations].append(run_alone("bookkeeping", ["--store", store], __file__))
    finally:
        if not given.store:
            shutil.rmtree(folder)
    _tell(given, machine, around, answers)


def _tell(
    given: argparse.Namespace,
    machine: dict[str, str | int | float],
    around: dict[int, list[Figures]],
    answers: dict[str, list[Figures]],
) -> None:
    questions, growth = _answers(answers, given.runs), _growth(around)
    print(as_text(questions), as_text(growth), sep="\n\n")
    if given.write:
        kept = {f"bookkeeping after {iterations}": found for iterations, found in around.items()}
        note = (
            f"{given.iterations * given.rows:,} trajectories in {given.iterations:,} iterations. Median and "
            "range; every run is a process, and goes from an unopened store to the answer."
        )
        tables = f"{as_markdown(questions)}\n\n{as_markdown(growth)}"
        publish(NAME, machine, {**answers, **kept}, note, tables)


def _answers(answers: dict[str, list[Figures]], runs: int) -> list[list[str]]:
    head = ["question", f"seconds, {_runs(runs)}", "CPU seconds", "peak memory, MB", "things in the answer"]
    return [head] + [
        [
            TITLES[name],
            median_and_range([one["seconds"] for one in found], 2),
            median_and_range([one["cpu_seconds_asking"] for one in found], 2),
            f"{max(one['peak_bytes'] for one in found) / 1e6:,.0f}",
            f"{found[0]['answer']:,.0f}",
        ]
        for name, found in answers.items()
    ]


def _growth(around: dict[int, list[Figures]]) -> list[list[str]]:
    title = f"bookkeeping of one more, ms, {_runs(len(around[SHORT]))}"
    return [["iterations stored", title, "opening the run, ms", "ledger lines"]] + [
        [
            f"{iterations:,}",
            median_and_range([one["bookkeeping"] * 1e3 for one in found], 1),
            f"{statistics.median(one['opening'] * 1e3 for one in found):.1f}",
            f"{found[0]['entries']:,.0f}",
        ]
        for iterations, found in around.items()
    ]


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


if __name__ == "__main__":
    main()
