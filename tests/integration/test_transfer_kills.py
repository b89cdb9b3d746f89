"""A run whose servers take weights from memory, against one whose servers read files."""

from pathlib import Path

import pytest

from erl_pipeline.engines.weights_in_memory import MEMORY
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.erl_pipeline.engines.vllm.small_policies import ONE_PROCESS, SMALL_CACHE, SMALL_SERVER
from tests.integration.killing import Watch, train_to_the_end, train_until
from tests.integration.runs import artifact_hashes, write_config

ENGINE = f"""
store: {{background_commit_mb: 0}}
engine:
  type: vllm
  dtype: float32
  enforce_eager: true
  max_in_flight: 1
  arguments: ["{ONE_PROCESS}", "{SMALL_CACHE}"]
  environment: {{{", ".join(f'{name}: "{value}"' for name, value in SMALL_SERVER.items())}}}
"""


def in_memory(ids: set[str]) -> set[str]:
    """Those of the checkpoints whose weights are in memory."""
    found = {path.parent.name.partition(".")[2] for path in MEMORY.glob("erl-pipeline-*/*/*/checkpoint.json")}
    return found & ids


def put_and_not_committed(store: Path, ids: set[str]) -> Watch:
    """The moment when weights are in memory, and their checkpoint is not committed."""

    def moment() -> bool:
        return any(not list(store.glob(f"artifacts/*/{each}/manifest.json")) for each in in_memory(ids))

    return moment


def handed_over(store: Path) -> set[str]:
    """How the server came to the weights, in all stages that sampled."""
    artifacts = ArtifactStore(str(store))
    entries = RunStore(str(store)).open("small").stages()
    told = [artifacts.open(entry.artifact_id).manifest.environment for entry in entries]
    return {str(each["weights"]) for each in told if "weights" in each}


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_killed_after_weights_came_to_memory_ends_with_the_bytes_of_one_that_reads_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "files").mkdir()
    config = write_config(tmp_path / "files", extra=f"{ENGINE}  transfer: files\n")
    undisturbed = tmp_path / "undisturbed"
    train_to_the_end(config, undisturbed)
    assert handed_over(undisturbed) == {"restart", "kept", "reload"}
    expected = artifact_hashes(undisturbed)

    config = write_config(tmp_path, extra=f"{ENGINE}  transfer: shared_memory\n")
    store = tmp_path / "killed"
    ids = {artifact_id for _, artifact_id in expected}
    assert train_until(config, store, put_and_not_committed(store, ids))
    assert in_memory(ids)
    train_to_the_end(config, store, check=True)
    assert artifact_hashes(store) == expected
    assert "transfer" in handed_over(store)
    assert in_memory(ids) == set()
