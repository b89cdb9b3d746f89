import os
import random
import signal
from pathlib import Path

import pytest

from tests.integration.runs import artifact_hashes, command, start_module, trajectory_ids, write_config

KILLS = int(os.environ.get("ERL_TEST_KILLS", "10"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
NEVER = 600.0


def train(config: Path, store: Path, seconds: float) -> float | None:
    """Train, and be killed `seconds` after the work began; None then, else the seconds that the work took."""
    process = start_module("tests.integration.train_until_killed", config, store, str(seconds))
    output, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors
    return float(output) if process.returncode == 0 else None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_killed_at_random_moments_ends_with_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    whole = train(config, undisturbed, NEVER)
    assert whole is not None

    moments = random.Random(SEED)
    kills = 0
    while kills < KILLS:
        # Every start goes on where the last was killed, so short times reach late stages too.
        if train(config, disturbed, moments.uniform(0.0, 2 * whole / KILLS)) is not None:
            break
        kills += 1
    print(f"seed {SEED}: killed {kills} times")
    assert kills >= KILLS // 2
    assert train(config, disturbed, NEVER) is not None

    assert artifact_hashes(disturbed) == artifact_hashes(undisturbed)
    ids = trajectory_ids(disturbed)
    assert len(set(ids)) == len(ids) > 0
    command("lineage", "verify", "small", "--store", disturbed)
