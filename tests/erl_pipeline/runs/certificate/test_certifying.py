"""Small runs whose copies are killed."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from erl_pipeline.runs.certificate.certificate import find_certificates
from erl_pipeline.runs.certificate.certifying import certify
from erl_pipeline.runs.certificate.subject import find_subject
from erl_pipeline.runs.planning import plan_as_made
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError, Interrupted
from storage.runs.origin import BranchOrigin, write_origin
from storage.runs.run import RunStore
from storage.upkeep.collection import plan_collection
from tests.command_line.invoke import invoke
from tests.erl_pipeline.runs.small_runs import damage


@pytest.mark.slow
def test_a_run_killed_three_times_gets_a_certificate_that_collection_keeps(
    store: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    scratch = tmp_path / "scratch"
    subject = find_subject(str(store), "small")
    certified = certify(subject, 3, 7, scratch, False, told.append, threading.Event())

    found = certified.certificate
    assert found.equal
    assert (found.lost, found.doubled, found.different, found.not_promised) == ((), (), (), ())
    assert (found.seed, found.iterations, len(found.kills), len(told)) == (7, 2, 3, 3)
    assert {kill.target for kill in found.kills} == {"driver"}
    assert found.artifacts == found.copies * len(plan_as_made(str(store), subject.run).nodes)
    assert list((scratch / "at_work").iterdir()) == []

    [(manifest, read)] = find_certificates(ArtifactStore(str(store)), RunStore(str(store)).open("small"))
    assert read == found
    assert (manifest.kind, manifest.artifact_id) == ("certificate", certified.artifact_id)
    assert (manifest.counters["kills"], manifest.counters["different"]) == (3, 0)
    assert plan_collection(str(store), timedelta(0)).unreached == ()
    shown = invoke("runs", "show", "small", "--store", store).output
    assert (
        f"Certificate {certified.artifact_id[:12]}: 2 iterations, 3 drivers killed (seed 7): equal" in shown
    )


@pytest.mark.slow
def test_a_changed_byte_is_found_and_fails_the_command(store: Path, tmp_path: Path) -> None:
    path = damage(store, 1, "fine_tune")
    words = ["certify", "small", "--kills", "1", "--iterations", "1", "--store", store]
    result = invoke(*words, "--scratch", tmp_path / "scratch", "--json")
    assert result.status == 1, result.errors
    assert result.json["equal"] is False
    assert (result.json["lost"], result.json["doubled"]) == ([], [])
    assert all(str(path) in line for line in result.json["different"])
    assert result.json["different"] != []


@pytest.mark.slow
def test_a_wish_to_stop_ends_the_copy_and_removes_it(store: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    subject = find_subject(str(store), "small")
    with pytest.raises(Interrupted):
        certify(subject, 2, 0, tmp_path, False, lambda _line: stop.set(), stop)
    assert list((tmp_path / "at_work").iterdir()) == []
    assert find_certificates(ArtifactStore(str(store)), subject.run) == []


def test_more_iterations_than_the_run_has_are_refused(store: Path) -> None:
    result = invoke("certify", "small", "--iterations", "3", "--store", store)
    assert result.status == 2
    assert "run small has iterations 1 to 2; 3 cannot be certified" in result.errors


def test_a_setting_that_artifacts_are_made_from_is_refused(store: Path) -> None:
    with pytest.raises(ConfigError, match="seed: 0 -> 1"):
        find_subject(str(store), "small", settings=["seed=1"])


def test_a_run_that_began_from_another_is_refused(store: Path) -> None:
    write_origin(str(store), "small", BranchOrigin(run="first", iteration=1, stage="update_policy"))
    with pytest.raises(InputError, match="certify run first"):
        find_subject(str(store), "small")
