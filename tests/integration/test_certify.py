"""A run certified on worker processes, which are killed as well as their driver, in `make reliability`."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from erl_pipeline.runs.certificate.certifying import certify
from erl_pipeline.runs.certificate.subject import find_subject
from tests.command_line.invoke import FinishedRun

KILLS = int(os.environ.get("ERL_TEST_KILLS", "0")) // 5
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not KILLS, reason="each kill of a worker costs a start of a process and of Prefect")
def test_a_run_whose_workers_are_killed_too_ends_with_the_bytes_of_an_undisturbed_one(
    finished: FinishedRun, tmp_path: Path
) -> None:
    processes = ["runner={type: prefect, task_runner: processes, workers: 2}", "resources.devices=2"]
    store = shutil.copytree(finished.store, tmp_path / "store")
    subject = find_subject(str(store), "small", settings=processes)
    scratch = tmp_path / "scratch"
    certificate = certify(subject, KILLS, SEED, scratch, False, print, threading.Event()).certificate
    assert (certificate.lost, certificate.doubled, certificate.different) == ((), (), ())
    assert certificate.artifacts == certificate.copies * len(subject.plan.nodes)
    assert {kill.target for kill in certificate.kills} == {"driver", "worker"}
