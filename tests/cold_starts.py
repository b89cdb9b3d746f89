"""Cold starts of the tiny policy that tests share, as files: each takes a second, and many runs have one.

A process that imports this module takes the cold start that another one has made from the same settings and
seed; these give equal bytes.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import torch

from erl_pipeline.environments.demonstrations import TinyParts
from erl_pipeline.plan.stage import StageCall, StageResult
from erl_pipeline.stages.training import first_checkpoint
from erl_pipeline.stages.training.first_checkpoint import ColdStartSettings

FOLDER_VARIABLE = "ERL_TEST_COLD_STARTS"
_FEW_STEPS = 10
"""So few take no time, and tests of the gate and of single steps have them."""
_make = first_checkpoint.cold_start_with


def _shared(call: StageCall[ColdStartSettings], parts: TinyParts) -> StageResult:
    settings = call.settings.policy.cold_start
    if settings.gate > 0 or settings.steps < _FEW_STEPS or FOLDER_VARIABLE not in os.environ:
        return _make(call, parts)
    asked = f"{call.settings.model_dump_json()} {call.seed} {torch.get_num_threads()}"
    known = Path(os.environ[FOLDER_VARIABLE]) / hashlib.sha256(asked.encode()).hexdigest()
    if not known.exists():
        result = _make(call, parts)
        with tempfile.TemporaryDirectory(dir=known.parent) as begun:
            shutil.copytree(call.folder, Path(begun, "files"))
            Path(begun, "result").write_bytes(pickle.dumps(result))
            try:
                Path(begun).rename(known)
            except OSError:  # Another process has just done so.
                pass
            else:
                os.mkdir(begun)  # for the end of the context
        return result
    call.progress.raise_if_stopped()
    shutil.copytree(known / "files", call.folder, dirs_exist_ok=True)
    found: StageResult = pickle.loads((known / "result").read_bytes())
    call.progress.begin(settings.steps, "steps")
    call.progress.advance(settings.steps, loss=found.metrics["loss"])
    return found


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


if FOLDER_VARIABLE not in os.environ:  # Processes that these tests start have it.
    os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="erl-cold-starts-")
    atexit.register(_remove, os.environ[FOLDER_VARIABLE], os.getpid())
first_checkpoint.cold_start_with = _shared
