import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from erl_pipeline.engines import weights_in_memory
from erl_pipeline.engines.weights_in_memory import WeightsWriter, find_weights, memory_is_usable
from tests.forked import forking

STORE, RUN = "/stores/here", "run"


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of `/dev/shm`."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(weights_in_memory, "MEMORY", folder)
    return folder


@pytest.fixture
def writer() -> Iterator[WeightsWriter]:
    with WeightsWriter(STORE, RUN) as opened:
        yield opened


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    file = tmp_path / "probe.safetensors"
    file.write_bytes(b"probe")
    return file


def write(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")


def in_memory(memory: Path) -> set[str]:
    return {path.parent.name.partition(".")[2] for path in memory.rglob("model.safetensors")}


def put_and_die(memory: Path, probe: Path) -> None:
    weights_in_memory.MEMORY = memory
    WeightsWriter(STORE, RUN).put("a", probe, 7, write)
    os.kill(os.getpid(), signal.SIGKILL)


def test_weights_are_found_by_run_checkpoint_and_probe(writer: WeightsWriter, probe: Path) -> None:
    assert find_weights(STORE, RUN, "a", probe) is None
    assert writer.put("a", probe, 7, write) == ""
    found = find_weights(STORE, RUN, "a", probe)
    assert found is not None
    assert (found / "model.safetensors").read_bytes() == b"weights"
    assert find_weights(STORE, RUN, "b", probe) is None
    assert find_weights(STORE, "another", "a", probe) is None
    # The checkpoint was computed again, with other weights.
    probe.write_bytes(b"other")
    assert find_weights(STORE, RUN, "a", probe) is None
    assert writer.put("a", probe, 7, write) == ""
    assert find_weights(STORE, RUN, "a", probe) == found


def test_two_checkpoints_of_a_run_stay_whoever_wrote_them(
    writer: WeightsWriter, probe: Path, memory: Path
) -> None:
    with WeightsWriter(STORE, RUN) as second, WeightsWriter(STORE, "another") as other:
        other.put("x", probe, 7, write)
        for number, each in enumerate([writer, second, writer, second]):
            each.put(f"checkpoint-{number}", probe, 7, write)
        assert in_memory(memory) == {"x", "checkpoint-2", "checkpoint-3"}
    assert in_memory(memory) == {"checkpoint-2"}


def test_without_room_nothing_is_written(writer: WeightsWriter, probe: Path, memory: Path) -> None:
    writer.put("a", probe, 7, write)
    writer.put("b", probe, 7, write)
    assert "free, and the weights have 1000000.00 GB" in writer.put("c", probe, 10**15, write)
    assert in_memory(memory) == {"b"}


def test_a_write_that_fails_leaves_nothing(writer: WeightsWriter, probe: Path, memory: Path) -> None:
    def write_too_much(folder: Path) -> None:
        write(folder)
        save_file({"weight": np.zeros(100_000)}, folder / "more.safetensors")

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        assert "File too large" in writer.put("a", probe, 7, write_too_much)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert in_memory(memory) == set()


def test_what_a_killed_process_has_left_goes_when_the_next_one_writes(probe: Path, memory: Path) -> None:
    process = forking().Process(target=put_and_die, args=(memory, probe))
    process.start()
    process.join()
    assert in_memory(memory) == {"a"}
    with WeightsWriter(STORE, RUN):
        assert in_memory(memory) == set()


def test_a_folder_in_which_others_can_write_is_not_used(
    writer: WeightsWriter, probe: Path, memory: Path
) -> None:
    assert memory_is_usable()
    writer.put("a", probe, 7, write)
    (folder,) = memory.iterdir()
    folder.chmod(0o777)
    assert not memory_is_usable()
    assert find_weights(STORE, RUN, "a", probe) is None
