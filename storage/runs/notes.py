"""What people say of a run: tags, and a note. Nothing that is computed depends on it."""

import re
from collections.abc import Callable

from pydantic import TypeAdapter

from storage.artifacts.sealing import Record, read_as, record_bytes
from storage.errors import InputError
from storage.filesystem import StoreRoot, open_root, replace_file
from storage.runs.locks import lock_notes
from storage.texts import storable

MOST_TAGS = 20
MOST_CHARACTERS = 2_000
"""Of a note."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


class RunNotes(Record):
    """The tags of a run, in the order in which they were given, and a note, which may have several lines."""

    tags: tuple[str, ...] = ()
    note: str = ""


_NOTES = TypeAdapter(RunNotes)


def read_notes(store_uri: str, run_name: str) -> RunNotes:
    """What was said of a run; empty notes if nothing was. Raises StoreError for a file that was changed."""
    root = open_root(store_uri)
    return read_as(root, _path(root, run_name), _NOTES, "notes of a run") or RunNotes()


def tag_run(store_uri: str, run_name: str, add: tuple[str, ...], remove: tuple[str, ...] = ()) -> RunNotes:
    """Add tags to a run and remove others; gives what is then said of it. The run may be at work.

    Raises InputError for a text that is no tag, or for too many of them; RunBusy while another process of
    this machine writes notes of the run. In an object store the last of two machines that write at once wins.
    """
    for tag in add:
        if _TAG.fullmatch(tag) is None:
            raise InputError(
                f"{tag!r} cannot be a tag: use up to 40 letters, digits, '.', '_' and '-', and begin with a "
                "letter or digit."
            )

    def changed(notes: RunNotes) -> RunNotes:
        tags = tuple(tag for tag in dict.fromkeys((*notes.tags, *add)) if tag not in remove)
        if len(tags) > MOST_TAGS:
            raise InputError(f"run {run_name} would have {len(tags)} tags; {MOST_TAGS} are allowed.")
        return notes.model_copy(update={"tags": tags})

    return _change(store_uri, run_name, changed)


def note_run(store_uri: str, run_name: str, text: str) -> RunNotes:
    """Replace the note of a run; an empty text removes it. Like `tag_run` else.

    Raises InputError for a note of more than `MOST_CHARACTERS`.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"the note has {len(text):,} characters; {MOST_CHARACTERS:,} are allowed.")
    return _change(store_uri, run_name, lambda notes: notes.model_copy(update={"note": storable(text)}))


def _change(store_uri: str, run_name: str, change: Callable[[RunNotes], RunNotes]) -> RunNotes:
    root = open_root(store_uri)
    with lock_notes(root, run_name):
        before = read_notes(store_uri, run_name)
        after = change(before)
        if after != before:
            replace_file(root, _path(root, run_name), record_bytes(after.model_dump(mode="json")))
        return after


def _path(root: StoreRoot, run_name: str) -> str:
    return root.join("runs", run_name, "notes.json")
