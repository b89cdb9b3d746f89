"""The log that a run's driver writes beside the ledger."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from erl_pipeline.runs import log
from erl_pipeline.runs.log import logged
from storage.errors import InputError, Interrupted, StoreError
from tests.erl_pipeline.runs.small_runs import Notes, go, small


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return tmp_path


def lines(folder: Path, run: str = "one") -> list[str]:
    """The lines of a log without their times."""
    text = (folder / "runs" / run / "run.log").read_text(encoding="utf-8")
    return [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", "", line) for line in text.splitlines()]


def test_what_a_run_does_is_logged_and_passed_on(tmp_path: Path) -> None:
    notes = go(small(), tmp_path, iterations=1)
    found = lines(tmp_path, "small")
    assert re.fullmatch(r"INFO process \d+ on \S+ works on run small", found[0])
    assert found[-1] == "INFO the work ended"
    made = [line for line in found if re.fullmatch(r"INFO .* in \d+\.\d s: artifact [0-9a-f]{12}", line)]
    assert [line.removeprefix("INFO ").partition(" in ")[0].split()[0] for line in made] == [
        title.split()[0] for title in notes.made
    ]
    notes = go(small(), tmp_path, iterations=1)
    again = lines(tmp_path, "small")
    assert again[: len(found)] == found  # the next process appends
    assert again[-2:] == [f"INFO {len(notes.reused)} artifacts reused", "INFO the work ended"]


def test_warnings_and_waiting_are_logged(folder: Path) -> None:
    notes = Notes()
    with logged(str(folder), "one", notes) as listener:
        listener.warn("it learns nothing")
        for seconds in (1.0, 2.0, 62.0):
            listener.waiting("update_policy", "a node", seconds, "none yet")
    assert notes.warnings == ["it learns nothing"]
    assert lines(folder)[1:-1] == [
        "WARNING it learns nothing",
        "INFO update_policy waits 1 s for a node: none yet",
        "INFO update_policy waits 62 s for a node: none yet",
    ]


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (InputError("no such file"), "ERROR no such file"),
        (Interrupted(), "INFO the work was stopped"),
        (ZeroDivisionError("by 0"), "ZeroDivisionError: by 0"),
    ],
)
def test_the_error_that_ends_the_work_is_logged(folder: Path, error: Exception, last: str) -> None:
    with pytest.raises(type(error)), logged(str(folder), "one", Notes()):
        raise error
    assert lines(folder)[-1] == last


def test_a_log_that_cannot_be_written_stops_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As on a disk without space.
    monkeypatch.setattr(log, "open_to_write", lambda *_: open("/dev/full", "ab"))  # noqa: SIM115
    notes = Notes()
    with logged(str(folder), "one", notes) as listener:
        listener.warn("it learns nothing")
    assert notes.warnings == ["it learns nothing"]
    assert capsys.readouterr().err == ""


def test_a_long_log_is_put_aside_and_a_link_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_MOST_BYTES", 200)
    with logged(str(folder), "one", Notes()) as listener:
        for number in range(9):
            listener.warn(f"{number} " + "x" * 80)
    run = folder / "runs" / "one"
    assert sorted(path.name for path in run.iterdir()) == ["run.log", "run.log.1", "run.log.2"]
    assert lines(folder)[-1] == "INFO the work ended"

    (run / "run.log").unlink()
    ledger = run / "ledger.jsonl"
    ledger.write_text("")
    (run / "run.log").symlink_to(ledger)
    with pytest.raises(StoreError, match="is a symbolic link"), logged(str(folder), "one", Notes()):
        pass
    assert ledger.read_text() == ""
