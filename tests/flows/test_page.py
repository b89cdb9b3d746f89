from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

from flows.local_server import log_to_file
from flows.page import artifact_key


def test_a_key_is_the_name_in_the_letters_that_prefect_takes() -> None:
    assert artifact_key("frozen-lake", "0123456789abcdef", "iterations") == "frozen-lake-01234567-iterations"
    assert artifact_key("Run_7.b", "fedcba9876543210", "summary") == "run-7-b-fedcba98-summary"


@given(name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_every_name_of_a_run_gives_a_key(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", artifact_key(name, "0123456789abcdef", "iterations"))


@pytest.mark.parametrize("name", ["prefect.test", "EventsWorker", "APILogWorker"])
def test_prefects_log_goes_to_the_file_and_not_to_the_console(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger(name)
    with log_to_file(tmp_path / "prefect.log"):
        logger.warning("within")
    logger.warning("afterwards")
    assert f"WARNING {name}: within" in (tmp_path / "prefect.log").read_text()
    assert "afterwards" not in (tmp_path / "prefect.log").read_text()
    assert "within" not in capsys.readouterr().err


def test_a_handler_that_another_replaced_meanwhile_shows_prefects_log_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [replaced])
    with log_to_file(tmp_path / "prefect.log"):
        logging.getLogger().removeHandler(replaced)
        assert len(replaced.filters) == 1
    assert replaced.filters == []


def test_prefects_services_log_under_the_names_of_their_classes() -> None:
    """So that nothing of them is on the console; fails when Prefect names their loggers in another way."""
    assert EventsWorker.instance()._logger.name == "EventsWorker"
    assert APILogWorker.instance()._logger.name == "APILogWorker"
