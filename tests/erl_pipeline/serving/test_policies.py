"""Checkpoints of a trained run, as they are served."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.engines.interface import SamplingCapacity
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.state import latest_checkpoint
from erl_pipeline.serving import policies
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun
from tests.storage.serving.aliases import alias_change


@pytest.mark.parametrize(("engine_holds", "expected"), [(None, 45), (40, 40), (50, 45)])
def test_conversations_have_the_room_that_both_the_policy_and_its_engine_hold(
    finished: FinishedRun, monkeypatch: pytest.MonkeyPatch, engine_holds: int | None, expected: int
) -> None:
    """The tiny policy holds 45 tokens. What is longer gets an error of the server: the engine alone would
    give an empty answer."""
    run = RunStore(str(finished.store)).open("small")
    config = run_config(run)
    found = plugins("engines")[config.engine.type]
    capacity = SamplingCapacity(1, max_tokens=engine_holds)
    limited = replace(found, value=replace(found.value, capacity=lambda settings, asked: capacity))
    monkeypatch.setattr(policies, "plugins", lambda group: {config.engine.type: limited})
    checkpoint = latest_checkpoint(config, run.stages())
    assert checkpoint is not None
    with policies.StoredPolicies(config, str(finished.store), threading.Event(), Listener()) as stored:
        opened = stored.open(alias_change(checkpoint.artifact_id, run="small"))
    assert opened.context_length == expected
