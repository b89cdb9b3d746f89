"""How long the page takes to answer over a memory of a million entries, and how much memory it takes.

    python benchmarks/page_speed.py --folder FOLDER [--entries 1000000] [--requests 50]

The memory is generated once, with the entries of `memory_growth.py`: FOLDER takes 1.4 GB for a million. The
page is asked in this process, so that the times are those of the server alone. What is asked first hashes
files, reads the list of entries or makes the map; these requests stand by themselves in the table.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from pathlib import Path

import numpy as np
from memory_growth import NAME, VERSION_ENTRIES, commit
from starlette.testclient import TestClient

from command_line.ui.access import access_for
from command_line.ui.app import create_app
from storage.artifacts.store import ArtifactStore
from storage.memory.history import memory_versions
from storage.memory.standalone import STANDALONE
from storage.runs.run import RunStore

SETTINGS = {STANDALONE: True, "memory": {"embedding_model": "generated"}}
HERE = f"/runs/{NAME}/memory"
RECTANGLE = "across=-0.1..0.1&up=-0.1..0.1"
PAGES = {
    "entries, by credit": HERE,
    "entries, by last iteration, page 1,000": f"{HERE}?sort=last_iteration&page=1000",
    "entries of a task type": f"{HERE}?task_type=type-03",
    "entries in a rectangle of the map": f"{HERE}?{RECTANGLE}",
    "points of the map, by credit": f"{HERE}/map",
    "points of the map, by iteration": f"{HERE}/map?colour=iteration",
}


def generate(store_uri: str, entries: int) -> None:
    """Commit the memory versions that are not there yet."""
    runs = RunStore(store_uri)
    run = runs.open(NAME) if NAME in runs.list() else runs.create(NAME, SETTINGS)
    for number in range(len(memory_versions(run)), entries // VERSION_ENTRIES):
        commit(ArtifactStore(store_uri), run, number, VERSION_ENTRIES)


def seconds_of(page: TestClient, address: str) -> float:
    """How long one answer takes."""
    started = time.perf_counter()
    answer = page.get(address)
    seconds = time.perf_counter() - started
    assert answer.status_code == 200, answer.text
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=50)
    given = parser.parse_args()
    store = str(given.folder / "store")
    generate(store, given.entries)
    page = TestClient(create_app(store, access_for("127.0.0.1")), base_url="http://127.0.0.1")
    print("| page | first, s | median, ms | 99 %, ms |\n|---|---|---|---|", flush=True)
    for title, address in PAGES.items():
        first = seconds_of(page, address)
        times = [seconds_of(page, address) for _ in range(given.requests)]
        high = float(np.quantile(times, 0.99))
        print(
            f"| {title} | {first:.1f} | {1e3 * statistics.median(times):.0f} | {1e3 * high:.0f} |", flush=True
        )
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nResident memory at most {resident:.2f} GB; load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
