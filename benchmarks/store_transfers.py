"""Upload and download of a checkpoint in an object store: seconds, and MB per second.

    python benchmarks/store_transfers.py [--megabytes 300] [--connections 8 1] [--write]

The store is the S3 server of the tests (moto), in a separate process, over loopback. So server and client
share the processor, and several connections save none of its work. The checkpoint consists of random bytes:
one large file of weights and twelve small ones. It is committed (up), and then opened with an empty cache, as
on another machine (down), with all checks of lengths and digests.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import measurements
import s3fs
from measurements import Column, Figures

from storage.artifacts.cache import CacheSettings
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore

STORE = "s3://bucket/store"
CHECKPOINT = Recipe("update_policy", 1, {}, {}, 0, kind="checkpoint")
SMALL_FILES, SMALL_BYTES = 12, 200_000
COLUMNS = (
    Column("up_seconds", "up, s"),
    Column("down_seconds", "down, s"),
    Column("up_rate", "up, MB/s", 0),
    Column("down_rate", "down, MB/s", 0),
    Column("peak_bytes", "peak memory, MB", 0, 1e-6),
)


def write_checkpoint(folder: Path, megabytes: int) -> int:
    """Write random bytes into files like those of a checkpoint; return how many bytes there are."""
    with (folder / "model.safetensors").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(10**6))
    for number in range(SMALL_FILES):
        (folder / f"small-{number}.json").write_bytes(os.urandom(SMALL_BYTES))
    return megabytes * 10**6 + SMALL_FILES * SMALL_BYTES


def measure(megabytes: int, connections: int) -> Figures:
    """Measure one commit, and one opening with an empty cache."""
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.s3_server import s3_server

    cache = CacheSettings(connections=connections)
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder) / "log") as server:
        os.environ.update(server.environment)
        s3fs.S3FileSystem.clear_instance_cache()
        one, two = (Path(folder) / name for name in ("one", "two"))
        one.mkdir()
        two.mkdir()
        tempfile.tempdir = str(one)
        store = ArtifactStore(STORE, cache=cache)
        with store.create(CHECKPOINT, run="run", iteration=1) as staging:
            size = write_checkpoint(staging.path, megabytes)
            started = time.perf_counter()
            staging.commit()
            up = time.perf_counter() - started
        tempfile.tempdir = str(two)
        other = ArtifactStore(STORE, cache=cache)
        started = time.perf_counter()
        other.open(CHECKPOINT.artifact_id)
        down = time.perf_counter() - started
        tempfile.tempdir = None
    return {
        "up_seconds": up,
        "down_seconds": down,
        "up_rate": size / up / 1e6,
        "down_rate": size / down / 1e6,
        **measurements.process_memory_and_cpu(),
    }


def main() -> None:
    parser = measurements.argument_parser(__doc__)
    parser.set_defaults(threads=1)
    parser.add_argument("--megabytes", type=int, default=300, help="of the large file")
    parser.add_argument("--connections", type=int, nargs="+", default=[8, 1], help="store.connections")
    arguments = measurements.parse_arguments(parser)
    if arguments.contender:
        connections = int(arguments.contender.split()[0])
        arguments.figures.write_text(json.dumps(measure(arguments.megabytes, connections)))
        return
    measurements.compare_contenders(
        "store_transfers",
        [f"{connections} connections" for connections in arguments.connections],
        COLUMNS,
        arguments,
        ["--megabytes", str(arguments.megabytes)],
        ["s3fs", "moto"],
        f"A checkpoint of {arguments.megabytes} MB, ",
    )


if __name__ == "__main__":
    main()
