from __future__ import annotations

import multiprocessing
import os
import time

from tests.integration.killing import workers_of
from tests.waiting import wait_for


def test_the_processes_that_were_spawned_are_found() -> None:
    assert workers_of(os.getpid()) == set()
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    # A started process has its parent's command line until it executes its own.
    wait_for("its command line", lambda: process.pid in workers_of(os.getpid()))
    process.kill()
    process.join()
    assert workers_of(os.getpid()) == set()
