import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.integration.runs import SMALL, artifact_hashes, command, start_module, trajectory_ids

KILLS = int(os.environ.get("ERL_TEST_KILLS", "10"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
NEVER = 3600.0
ENGINE = """\
engine:
  type: vllm
  dtype: float32
  enforce_eager: true
  max_in_flight: {max_in_flight}
  environment:
    OMP_NUM_THREADS: "1"
    VLLM_CPU_OMP_THREADS_BIND: nobind
    VLLM_CPU_KVCACHE_SPACE: "1"
"""
MANY = 1000
"""Iterations that no run here comes to."""


def write_vllm_config(folder: Path, max_in_flight: int) -> Path:
    path = folder / "small_vllm.yaml"
    path.write_text(SMALL.format(iterations=MANY) + ENGINE.format(max_in_flight=max_in_flight))
    return path


def train(config: Path, store: Path, iterations: int, seconds: float) -> float | None:
    """Train, and be killed `seconds` after the work began; None then, else the seconds that the work took."""
    process = start_module(
        "tests.integration.train_until_killed", config, store, str(seconds), str(iterations)
    )
    output, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return float(output) if process.returncode == 0 else None


def rollouts(store: Path) -> list[Manifest]:
    """The manifests of all committed rollouts, one for each iteration."""
    artifacts = ArtifactStore(str(store))
    entries = RunStore(str(store)).open("small").stages()
    return [
        artifacts.open(entry.artifact_id).manifest
        for entry in entries
        if entry.stage == "rollout_shard" and entry.key == "0000"
    ]


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_a_killed_run_with_a_server_keeps_what_it_committed_and_doubles_nothing(tmp_path: Path) -> None:
    """Two runs side by side: most of the time goes into starts of servers, one core's work each."""
    runs = [(8, KILLS, "approximate"), (1, max(2, KILLS // 3), "bytes")]
    with ThreadPoolExecutor(len(runs)) as pool:
        for judged in [pool.submit(train_disturbed, tmp_path / run[2], *run) for run in runs]:
            judged.result()


def train_disturbed(folder: Path, max_in_flight: int, kills: int, guarantee: str) -> None:
    """Each start must bring up its own server first, so the kills fall around that time and after it."""
    folder.mkdir()
    config, disturbed = write_vllm_config(folder, max_in_flight), folder / "disturbed"
    first = train(config, disturbed, 1, NEVER)
    assert first is not None
    moments = random.Random(SEED)
    print(f"{guarantee}: seed {SEED}, {first:.1f} s to the end of the first iteration")
    committed = artifact_hashes(disturbed)
    in_rollouts = 0
    for _ in range(kills):
        assert train(config, disturbed, MANY, moments.uniform(0.6, 1.4) * first) is None
        kept = artifact_hashes(disturbed)
        assert {key: kept[key] for key in committed} == committed
        in_rollouts += len(kept) > len(committed)
        committed = kept
    # Kills that came after the server had started found something to interrupt.
    assert in_rollouts >= kills // 3
    last = len(rollouts(disturbed))
    assert train(config, disturbed, last + 1, NEVER) is not None

    whole = artifact_hashes(disturbed)
    assert {key: whole[key] for key in committed} == committed
    ids = trajectory_ids(disturbed)
    assert len(set(ids)) == len(ids) > 0
    assert {manifest.determinism for manifest in rollouts(disturbed)} == {guarantee}
    command("lineage", "verify", "small", "--store", disturbed)
    if guarantee == "bytes":
        undisturbed = folder / "undisturbed"
        assert train(config, undisturbed, last + 1, NEVER) is not None
        assert artifact_hashes(undisturbed) == whole
