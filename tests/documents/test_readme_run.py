"""README and quickstart show what the stored run of the default configuration printed."""

from __future__ import annotations

import json
import re

import pytest

from tests.documents.figures import RESULTS
from tests.documents.pages import ROOT

STORED = json.loads((RESULTS / "readme_run.json").read_text(encoding="utf-8"))
PRINTED: dict[str, list[str]] = STORED["printed"]
TRAIN = "erl-pipeline train configs/frozen_lake.yaml"
README = (ROOT / "README.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")


def shown(command: str) -> list[str]:
    """The lines that the quickstart shows below a command, without the marks of lines left out."""
    below = re.split(rf"^\$ {re.escape(command)}(?: +#.*)?$\n", QUICKSTART, flags=re.M)[1]
    lines = re.split(r"^```$|^\$ ", below, flags=re.M)[0].splitlines()
    return [line for line in lines if line not in ("", "...")]


def are_in_order(lines: list[str], printed: list[str]) -> bool:
    rest = iter(printed)
    return all(line in rest for line in lines)


def test_readme_shows_rows_that_the_stored_run_printed() -> None:
    (block,) = re.findall(r"^ iter .*?(?=^```)", README, re.S | re.M)
    lines = block.splitlines()
    printed = PRINTED[TRAIN]
    assert len(lines) > 6
    assert are_in_order(lines, printed), [line for line in lines if line not in printed]
    assert lines[-1] == [line for line in printed if re.match(r" +30 ", line)][-1]


def test_readme_names_the_commit_and_the_time_of_the_stored_run() -> None:
    machine = STORED["machine"]
    assert f"(commit {machine['code'][:7]})" in README
    assert f"took {STORED['seconds']:.0f} seconds" in README


@pytest.mark.parametrize("command", [each for each in PRINTED if each != TRAIN])
def test_the_quickstart_shows_lines_that_the_stored_run_printed(command: str) -> None:
    lines = shown(command)
    assert lines
    assert are_in_order(lines, PRINTED[command]), [x for x in lines if x not in PRINTED[command]]


def test_what_is_stored_names_no_path_of_a_machine() -> None:
    assert [x for lines in PRINTED.values() for x in lines if re.search(r"(?<![\w.)])/\w+/", x)] == []


def test_the_order_of_lines_matters() -> None:
    assert are_in_order(["a", "c"], ["a", "b", "c"])
    assert not are_in_order(["c", "a"], ["a", "b", "c"])
