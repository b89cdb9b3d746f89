"""Which files stay on a stage's machine when the store is a bucket."""

from __future__ import annotations

import tempfile
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.plan.runner import StageJob, compute
from erl_pipeline.plan.stage import Listener, Resources, StageCall, StageProgress, WorkerSettings
from storage.artifacts.cache import CacheSettings
from tests.erl_pipeline.plan.hand_made import planned


def test_inputs_stay_while_a_stage_computes_and_make_room_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has room for nothing: the stage's own result is removed too, and downloaded again as the
    input of the next."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    read: list[str] = []

    def hook(call: StageCall[Any]) -> None:
        read.extend(made.path("file").read_text() for made in call.inputs.values())

    first = planned("first", word="one")
    second = planned("second", [first], hook)
    stop = threading.Event()
    worker = WorkerSettings(f"memory://{uuid.uuid4().hex}", "run", 1, cache=CacheSettings(limit_bytes=0))
    with Resources(worker, stop) as resources:
        for node in (first, second):
            compute(StageJob(node, worker), resources, StageProgress(node.title, Listener(), stop))
            assert not list(tmp_path.rglob("file"))
    assert read == ["one"]
