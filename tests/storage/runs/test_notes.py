"""What people say of a run: tags and a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import InputError, RunBusy, StoreError
from storage.filesystem import open_root
from storage.runs.locks import lock_notes
from storage.runs.notes import MOST_CHARACTERS, MOST_TAGS, RunNotes, note_run, read_notes, tag_run
from storage.runs.run import RunStore


@pytest.fixture
def store(tmp_path: Path) -> str:
    RunStore(str(tmp_path)).create("one", {})
    return str(tmp_path)


def test_tags_and_a_note_are_kept_also_while_the_run_is_at_work(store: str) -> None:
    assert read_notes(store, "one") == RunNotes()
    with RunStore(store).open("one").lock():
        tag_run(store, "one", ("baseline", "seed-1", "baseline"))
    note_run(store, "one", "too\nhigh")
    assert tag_run(store, "one", ("last",), ("seed-1", "unknown")) == RunNotes(
        tags=("baseline", "last"), note="too\nhigh"
    )
    assert note_run(store, "one", "") == read_notes(store, "one") == RunNotes(tags=("baseline", "last"))


@pytest.mark.parametrize("tag", ["", "a b", "-x", "x" * 41, "a\n"])
def test_what_is_no_tag_is_refused(store: str, tag: str) -> None:
    with pytest.raises(InputError, match="cannot be a tag"):
        tag_run(store, "one", ("good", tag))
    assert read_notes(store, "one") == RunNotes()


def test_too_much_is_refused(store: str) -> None:
    with pytest.raises(InputError, match=f"{MOST_TAGS} are allowed"):
        tag_run(store, "one", tuple(f"t{number}" for number in range(MOST_TAGS + 1)))
    with pytest.raises(InputError, match="2,001 characters; 2,000 are allowed"):
        note_run(store, "one", "x" * (MOST_CHARACTERS + 1))


def test_two_do_not_write_at_once_and_a_changed_file_is_told_of(store: str) -> None:
    with lock_notes(open_root(store), "one"), pytest.raises(RunBusy, match="notes of run one"):
        tag_run(store, "one", ("late",))
    tag_run(store, "one", ("first",))
    file = Path(store) / "runs" / "one" / "notes.json"
    file.write_bytes(file.read_bytes().replace(b"first", b"other"))
    with pytest.raises(StoreError, match="was changed"):
        read_notes(store, "one")
