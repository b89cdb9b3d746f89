"""How long the web page takes to answer, for each kind of page, and how much memory it takes.

    python benchmarks/page_speed.py --folder FOLDER [--parts history memory] [--requests 100] [--write]

- `history`: every kind of page over a run of 1,000,000 generated trajectories in 1,000 iterations, 1.5 GB in
  FOLDER (`workloads/page_history.py`).
- `memory`: the list and the map of a memory of 1,000,000 generated entries, 1.4 GB (`memory_growth.py`).

Each part is written once and measured in a separate process, which also answers the requests, so the times
are those of the server alone. The first request of a kind reads, hashes or builds what later answers use; it
is reported separately. `--only TITLE` measures only the kinds of pages whose title contains TITLE.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
from measurements import (
    Figures,
    ResidentMemory,
    add_run_alone_arguments,
    add_write_arguments,
    as_markdown,
    as_text,
    describe_machine,
    parse_arguments,
    publish,
    run_alone,
)
from memory_growth import NAME as MEMORY_RUN
from memory_growth import VERSION_ENTRIES, commit
from starlette.testclient import TestClient
from workloads import page_history
from workloads.page_history import Kind

from command_line.ui.access import access_for
from command_line.ui.app import create_app
from storage.artifacts.store import ArtifactStore
from storage.memory.standalone import STANDALONE
from storage.memory.versions import memory_versions
from storage.runs.run import RunStore

NAME = "page_speed"
PARTS = ("history", "memory")
MOST_HIGH_MS = 500.0
_SETTINGS = {STANDALONE: True, "memory": {"embedding_model": "generated"}}
_MEMORY = f"/runs/{MEMORY_RUN}/memory"
_MEMORY_PAGES = {
    "entries, by credit": _MEMORY,
    "entries, by last iteration, page 1,000": f"{_MEMORY}?sort=last_iteration&page=1000",
    "entries of a task type": f"{_MEMORY}?task_type=type-03",
    "entries in a rectangle of the map": f"{_MEMORY}?across=-0.1..0.1&up=-0.1..0.1",
    "points of the map, by credit": f"{_MEMORY}/map",
    "points of the map, by iteration": f"{_MEMORY}/map?colour=iteration",
}


def generate_memory(store_uri: str, entries: int) -> None:
    """Commit the memory versions that the store does not have yet."""
    runs = RunStore(store_uri)
    run = runs.open(MEMORY_RUN) if MEMORY_RUN in runs.list() else runs.create(MEMORY_RUN, _SETTINGS)
    for number in range(len(memory_versions(run)), entries // VERSION_ENTRIES):
        commit(ArtifactStore(store_uri), run, number, VERSION_ENTRIES)


def measure(part: str, store_uri: str, requests: int, only: str) -> Figures:
    """For each kind of page, in milliseconds: the `first` request, the `median` and `high` (99th percentile)
    of the others, and the `most` that the median may be; and `resident_bytes`, without mapped files."""
    kinds = (
        page_history.kinds(store_uri)
        if part == "history"
        else [Kind(title, repeat(address)) for title, address in _MEMORY_PAGES.items()]
    )
    figures: Figures = {}
    page = TestClient(create_app(store_uri, access_for("127.0.0.1")), base_url="http://127.0.0.1")
    with ResidentMemory() as resident:
        for kind in kinds:
            if only not in kind.title:
                continue
            # Ids are looked up here, before the time is measured.
            first, *others = [next(kind.addresses) for _ in range(1 + requests)]
            figures[f"{kind.title}: first"] = _milliseconds(page, first)
            times = [_milliseconds(page, address) for address in others]
            figures[f"{kind.title}: median"] = statistics.median(times)
            figures[f"{kind.title}: high"] = float(np.quantile(times, 0.99))
            figures[f"{kind.title}: most"] = kind.most_ms
            print(_line(kind.title, figures), flush=True)
    return figures | {"resident_bytes": float(resident.peak)}


def _milliseconds(page: TestClient, address: str) -> float:
    """How long one answer takes."""
    started = time.perf_counter()
    answer = page.get(address)
    seconds = time.perf_counter() - started
    if answer.status_code != 200:
        raise RuntimeError(f"{address} gave {answer.status_code}: {answer.text[:2000]}")
    return 1e3 * seconds


def _line(title: str, figures: Mapping[str, float]) -> list[str]:
    first, median, high, most = (figures[f"{title}: {name}"] for name in ("first", "median", "high", "most"))
    held = "yes" if median < most and high < MOST_HIGH_MS else "no"
    return [title, f"{first:,.0f}", f"{median:.0f}", f"{high:.0f}", f"{most:.0f}", held]


def _tables(figures: Mapping[str, Figures]) -> list[list[str]]:
    rows = [["page", "first, ms", "median, ms", "99 %, ms", "median at most, ms", "held"]]
    for found in figures.values():
        titles = [name.removesuffix(": first") for name in found if name.endswith(": first")]
        rows += [_line(title, found) for title in titles]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000, help="trajectories of an iteration")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=100, help="of each kind, after the first")
    parser.add_argument("--only", default="", help="measure only kinds of pages whose title contains this")
    add_write_arguments(parser)
    add_run_alone_arguments(parser)
    given = parse_arguments(parser)
    if given.contender:
        store = str(given.folder / given.contender / "store")
        found = measure(given.contender, store, given.requests, given.only)
        given.figures.write_text(json.dumps(found))
        return
    for part in given.parts:
        store = str(given.folder / part / "store")
        if part == "history":
            page_history.generate(store, given.iterations, given.rows)
        else:
            generate_memory(store, given.entries)
    machine = describe_machine(1, ["polars", "pyarrow", "lancedb", "fastapi"])
    options = ["--folder", str(given.folder), "--requests", str(given.requests), "--only", given.only]
    figures = {part: run_alone(part, options, __file__) for part in given.parts}
    shown, told = _tables(figures), _resident(figures)
    print(as_text(shown), told, sep="\n\n")
    if given.write:
        measured = [
            f"{given.iterations * given.rows:,} trajectories in {given.iterations:,} iterations"
            if part == "history"
            else f"a memory of {given.entries:,} entries"
            for part in given.parts
        ]
        note = f"{' and '.join(measured)}; {given.requests} requests of each kind after the first."
        publish(NAME, machine, figures, note, f"{as_markdown(shown)}\n\n{told}")


def _resident(figures: Mapping[str, Figures]) -> str:
    parts: Sequence[str] = [
        f"{found['resident_bytes'] / 1e9:.2f} GB ({part})" for part, found in figures.items()
    ]
    return f"Resident memory at most {', '.join(parts)}."


if __name__ == "__main__":
    main()
