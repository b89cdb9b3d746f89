from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.runs.ledger import record_bytes
from storage.runs.origin import BranchOrigin, OfflineOrigin, read_origin, write_origin

BRANCH = BranchOrigin(run="first", iteration=3, stage="update_policy")


def test_an_origin_is_written_once_and_read_again(tmp_path: Path) -> None:
    offline = OfflineOrigin(
        run="first", first_iteration=2, last_iteration=5, checkpoint_id="c" * 32, evaluates=False
    )
    assert read_origin(str(tmp_path), "second") is None
    write_origin(str(tmp_path), "second", BRANCH)
    write_origin(str(tmp_path), "third", offline)
    write_origin(str(tmp_path), "second", BRANCH)

    assert read_origin(str(tmp_path), "second") == BRANCH
    assert read_origin(str(tmp_path), "third") == offline
    assert offline.iterations == 4
    assert BRANCH.describe() == "from update_policy in iteration 3 of first"
    assert offline.describe() == (
        "on the stored rollouts of iterations 2..5 of first at checkpoint cccccccccccc, without evaluation"
    )


def test_another_origin_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    write_origin(str(tmp_path), "second", BRANCH)
    with pytest.raises(StoreError, match="another origin"):
        write_origin(str(tmp_path), "second", BRANCH.model_copy(update={"iteration": 4}))
    assert read_origin(str(tmp_path), "second") == BRANCH


def test_a_file_that_is_no_origin_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "second" / "origin.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(record_bytes({"type": "elsewhere"}))
    with pytest.raises(StoreError, match=r"origin\.json is not the origin of a run"):
        read_origin(str(tmp_path), "second")
