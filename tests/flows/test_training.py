from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from erl_pipeline.config.load import load_config
from erl_pipeline.pipeline.context import open_context
from erl_pipeline.pipeline.outcome import Silent, StageOutcome
from flows.local_server import OrchestratorError
from flows.training import log_to_file, train_with_prefect
from tests.command_line.invoke import SMALL

ROOT = Path(__file__).parents[2]


class KillsAtFirstStage(Silent):
    """A listener that kills a process when the first stage is done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def stage_finished(self, outcome: StageOutcome) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.usefixtures("prefect_home")
def test_an_api_that_goes_away_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.flows.hold_server", str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": ""},
    )
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    (tmp_path / "small.yaml").write_text(SMALL)
    config = load_config(tmp_path / "small.yaml", ["policy.cold_start.steps=2"])
    with (
        open_context(config, str(tmp_path), KillsAtFirstStage(server), threading.Event()) as context,
        temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}),
        pytest.raises(OrchestratorError, match=r"went away .* what was committed is kept"),
    ):
        train_with_prefect(context, None, tmp_path / "prefect.log")
    assert server.returncode == -signal.SIGKILL
    assert [entry.stage for entry in context.run.stages()][:1] == ["prepare_tasks"]


def test_prefects_log_goes_to_the_file_and_not_to_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("prefect.test")
    with log_to_file(tmp_path / "prefect.log"):
        logger.warning("within")
    logger.warning("afterwards")
    assert "WARNING prefect.test: within" in (tmp_path / "prefect.log").read_text()
    assert "afterwards" not in (tmp_path / "prefect.log").read_text()
    assert "within" not in capsys.readouterr().err
