from __future__ import annotations

import multiprocessing
import os
import time

from tests.integration.killing import workers_of


def test_the_processes_that_were_spawned_are_found() -> None:
    assert workers_of(os.getpid()) == set()
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    process.start()
    assert process.pid in workers_of(os.getpid())
    process.kill()
    process.join()
    assert workers_of(os.getpid()) == set()
