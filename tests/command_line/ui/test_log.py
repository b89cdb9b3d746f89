"""The page of a run's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line.ui.log_pages import read_tail
from tests.command_line.ui.clients import client, main_text
from tests.command_line.ui.stores import write_page_store

LOG = """\
2026-11-26T10:00:00Z INFO process 7 on here works on run one
2026-11-26T10:00:01Z DEBUG update_policy begins
2026-11-26T10:00:02Z WARNING <b>nothing</b> is learned
2026-11-26T10:00:03Z ERROR ZeroDivisionError
Traceback (most recent call last):
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_page_store(tmp_path)
    return tmp_path / "store"


def test_the_log_is_shown_from_a_level_on(folder: Path) -> None:
    page = client(folder)
    assert "There is no log on this machine" in main_text(page.get("/runs/one/log").text)
    (folder / "runs/one/run.log").write_text(LOG)
    assert "5 lines" in main_text(page.get("/runs/one/log").text)
    warnings = page.get("/runs/one/log?level=warning").text
    assert "3 lines" in main_text(warnings)
    assert "&lt;b&gt;nothing&lt;/b&gt;" in warnings
    assert '<li class="error">Traceback' in warnings
    assert "2 lines" in main_text(page.get("/runs/one/log?level=error").text)
    assert page.get("/runs/one/log?level=loud").status_code == 400
    assert page.get("/runs/one/log?file=../run.json").status_code == 400


def test_only_the_end_of_a_long_log_is_read_with_what_was_put_aside(folder: Path) -> None:
    log = folder / "runs/one/run.log"
    log.with_name("run.log.1").write_text("".join(f"INFO old {number}\n" for number in range(499)))
    log.write_text("INFO new 1\nINFO new 2\n")
    text = main_text(client(folder).get("/runs/one/log").text)
    assert "The last 500 lines" in text
    assert "INFO old 0 " not in text
    assert "INFO old 1 " in text
    assert "INFO old 498 INFO new 1 INFO new 2" in text
    for most, tail in ((15, "INFO new 2\n"), (40, "INFO old 498\nINFO new 1\nINFO new 2\n")):
        assert read_tail(log, most) == tail


def test_other_logs_of_the_run_can_be_chosen_and_links_are_not_followed(folder: Path) -> None:
    secret = folder.parent / "secret"
    secret.write_text("INFO secret\n")
    (folder / "runs/one/run.log").symlink_to(secret)
    (folder / "runs/one/prefect.log").write_text("10:00:00.1 | ERROR | prefect - lost\n")
    page = client(folder)
    assert "secret" not in main_text(page.get("/runs/one/log").text).replace(str(secret), "")
    text = main_text(page.get("/runs/one/log?file=prefect.log&level=error").text)
    assert "| ERROR | prefect - lost" in text
