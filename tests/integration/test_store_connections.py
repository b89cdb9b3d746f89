"""Runs in a bucket whose connections are cut at random instants, many of them within a request or an answer.

ERL_TEST_KILLS sets the number of cuts, ERL_TEST_SEED their seed. `make reliability` cuts a hundred times.
"""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter
from pathlib import Path

import pytest
import s3fs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests import forked
from tests.command_line.invoke import FinishedRun
from tests.integration.runs import artifact_hashes
from tests.proxy import Direction, Proxy
from tests.s3_server import s3_server

CUTS = int(os.environ.get("ERL_TEST_KILLS", "6"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))

MOST_SECONDS = 1.0
MOST_BYTES: dict[Direction, int] = {"request": 200_000, "answer": 20_000}
# aiohttp logs this when a connection is gone before the header of an upload; the upload is repeated.
ALREADY_CLOSED = re.compile(
    r"Task exception was never retrieved\nfuture: <Task .*ClientRequest\.write_bytes.*\n"
    r"Traceback .*\n(?:  .*\n)*.*ClientConnectionResetError: Cannot write to closing transport\n"
)


def train_with_cuts(
    config: Path,
    store: str,
    portal: BlockingPortal,
    proxy: Proxy,
    environment: dict[str, str],
    chance: random.Random,
    cuts: int,
) -> int:
    """Train while connections are cut, until there were so many cuts; returns the exit status. `portal` leads
    to the proxy's event loop."""
    training = forked.start("train", config, "--store", store, "--no-prefect", environment=environment)
    ended = threading.Event()

    def cut() -> None:
        while not ended.wait(chance.uniform(0.0, MOST_SECONDS)) and len(proxy.cuts) < cuts:
            direction = chance.choice([*MOST_BYTES, None])
            if direction is None:
                portal.call(proxy.cut)
            else:
                portal.call(proxy.cut_within, direction, chance.randrange(MOST_BYTES[direction]))

    cutting = threading.Thread(target=cut)
    cutting.start()
    result = training.end()
    ended.set()
    cutting.join()
    assert "Traceback" not in ALREADY_CLOSED.sub("", result.errors), result.errors
    assert result.status in (0, 2), result.errors
    return result.status


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_whose_store_connections_are_cut_ends_with_the_bytes_of_an_undisturbed_one(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = artifact_hashes(finished.store)
    chance = random.Random(SEED)
    stores = ended_early = 0
    with s3_server(tmp_path / "log") as server, start_blocking_portal() as portal:
        proxy = Proxy(server.port)
        portal.call(proxy.open)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        through_proxy = {**os.environ, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
        while len(proxy.cuts) < CUTS:
            store = f"s3://bucket/{stores}"
            # Each store has a cache of its own, as on a machine that never saw the run.
            cache = tmp_path / f"cache-{stores}"
            cache.mkdir()
            environment = {**through_proxy, "TMPDIR": str(cache)}
            while train_with_cuts(finished.config, store, portal, proxy, environment, chance, CUTS):
                ended_early += 1
            stores += 1

            assert artifact_hashes(store) == hashes
            assert verify_run(ArtifactStore(store), RunStore(store).open("small")).problems == []
        portal.call(proxy.close)
    s3fs.S3FileSystem.clear_instance_cache()
    print(f"\nseed {SEED}: cut {len(proxy.cuts)} times in {stores} runs, {ended_early} commands failed")
    for place, times in sorted(Counter(proxy.cuts).items()):
        print(f"  {times:3d} {place}")
