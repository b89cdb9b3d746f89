"""The commands of the quickstart, on a small run, print what the page shows, apart from numbers and ids."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_line.invoke import FinishedRun, invoke
from tests.documents.pages import PROGRAM, Page, command_words

RUN, LAST, LEFT_OUT, EPISODE = "frozen-lake", "30", "...", "EPISODE"
"""The page's name for its run, and its last iteration; the mark for lines that are left out; what a reader
replaces by an id of the list before."""
LANGUAGE_MODEL_RUN = "in-words"
"""The page's run of a language model, whose weights the tests do not need: its commands are only parsed, by
`test_commands`."""
_ID = re.compile(r"(?:m-)?\b[0-9a-f]{7,64}\b")


@dataclass(frozen=True)
class Example:
    """A command that the page shows, with what it prints there."""

    words: tuple[str, ...]
    output: str


def examples() -> Iterator[Example]:
    """The commands after a prompt, in order."""
    for _, block in Page("docs/quickstart.md").blocks():
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            assert line.startswith(f"{PROGRAM} ")
            if LANGUAGE_MODEL_RUN not in line:
                yield Example(command_words(line), output)


def masked(output: str) -> list[str]:
    """Lines without what differs from run to run: numbers, ids, widths, and rows that contain only
    numbers."""
    return [line for line in map(_masked, output.splitlines()) if line.strip("0 ")]


def _masked(line: str) -> str:
    without_ids = _ID.sub("ID", line)
    # A dash stands in a table where there is no number.
    numbers = re.sub(r"[+-]?\d[\d,.]*|(?<= )-(?= )", "0", without_ids)
    words = re.sub(r"─+", "─", numbers).replace("MB", "kB")
    # Texts of the tiny policy in its four words.
    said = re.sub(r"(?<=\s)[abcd?](?: [abcd?]){3}(?=\s|$)", "WORDS", words)
    return " ".join(said.replace("0x0", "0").split())


def in_order(shown: list[str], printed: list[str]) -> list[str]:
    """The lines shown that are not printed, in the order shown."""
    rest = iter(printed)
    missing = []
    for line in shown:
        if line == LEFT_OUT:
            continue
        before = list(printed)
        if not any(line == each for each in rest):
            missing.append(line)
            rest = iter(before)
    return missing


@pytest.fixture(scope="module")
def copy(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the small run, to which the last commands add a run."""
    store = tmp_path_factory.mktemp("quickstart") / "store"
    shutil.copytree(finished.store, store)
    return store


def test_the_page_says_what_the_commands_print(
    finished: FinishedRun, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERL_PIPELINE_STORE", str(copy))
    monkeypatch.setenv("COLUMNS", "200")
    wrong, before = [], ""
    for example in examples():
        words = [_of_small_run(word, before) for word in example.words]
        result = invoke(*words)
        assert result.status == 0, f"{' '.join(words)}: {result.errors}"
        printed = result.output.replace(str(copy), "store")
        shown = masked(example.output.replace(RUN, "small"))
        wrong += [f"{' '.join(words)}: {line}" for line in in_order(shown, masked(printed))]
        before = printed
    assert not wrong


def test_the_commands_name_nothing_that_differs_from_reader_to_reader() -> None:
    assert not [word for example in examples() for word in example.words if _ID.fullmatch(word)]


def _of_small_run(word: str, printed: str) -> str:
    """A word of a command for the small run; an episode is the first of the output of the command before."""
    if word == RUN:
        return "small"
    if word == LAST:
        return "2"
    if word == EPISODE:
        found: str = _ID.findall(printed)[0]
        return found
    return word


def test_a_line_that_is_not_printed_is_found() -> None:
    assert in_order(["a 0", "...", "b"], ["a 0", "x", "b"]) == []
    assert in_order(["b", "a 0"], ["a 0", "b"]) == ["a 0"]
    assert masked("  198 artifacts; 54,147 tokens of 785b34b2532f") == ["0 artifacts; 0 tokens of ID"]
