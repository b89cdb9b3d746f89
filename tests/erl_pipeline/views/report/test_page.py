from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.views.report.page import render_report, write_report
from storage.errors import DamagedArtifact, StoreError
from storage.runs.documents import BranchOrigin, write_origin

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Checks that every element is closed, and keeps headings, links and ids."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2", "h3", "h4"):
            self.headings.append(data.strip())


def test_the_report_of_an_erl_run_shows_result_learning_episodes_settings_and_lineage(erl_run: Any) -> None:
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    outline = Outline(page)
    sections = [
        "Evaluations",
        "Learning",
        "Time and tokens",
        "Whole episodes",
        "Settings",
        "Lineage",
        "How to reproduce it",
    ]
    assert [heading for heading in outline.headings if heading in sections] == sections
    assert "50 %" in page
    assert "100 %" in page
    assert "tasks gained: 1, lost: 0" in page
    assert page.count("Solved at a later attempt") == 2
    assert "Look before you step." in page
    assert "method:\n  type: erl" in page


def test_what_reproduces_a_branch_and_what_has_the_same_bytes_is_told(erl_run: Any, rlvr_run: Any) -> None:
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    assert "Saved as a file it starts the same run again." in page
    assert "a new run commits artifacts with these ids and the same file hashes." in page
    erl_run.commit("prepare_tasks", None, key="2", determinism="approximate")
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    assert "The file hashes are the same but for those of\n1 of the 18 artifacts" in page
    origin = BranchOrigin(run="lake", iteration=2, stage="update_policy")
    write_origin(rlvr_run.store.uri, rlvr_run.run.name, origin)
    page = render_report(rlvr_run.store, rlvr_run.run, rlvr_run.description)
    assert (
        "The run was begun from update_policy in iteration 2 of lake, which the settings do not say." in page
    )
    assert "starts the same run again" not in page


def test_the_page_loads_nothing_and_runs_no_script_but_its_own(erl_run: Any) -> None:
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    assert not re.search(r"url\(|@import", page)
    assert all(link.startswith("#") for link in Outline(page).links)
    policy = re.search(r'content="(default-src [^"]*)"', page)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1].replace("'", "&#39;")
    assert "unsafe" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert [f"sha256-{digest}" in policy[1] for digest in digests] == [True]


def test_its_curves_are_those_of_the_page(erl_run: Any) -> None:
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    numbers = re.search(r'id="curve-numbers">(.*?)</script>', page, re.DOTALL)
    assert numbers is not None
    charts = {chart["title"]: chart for chart in json.loads(numbers[1])["charts"]}
    success = charts["Held-out success"]["series"][0]
    assert (success["x"], success["y"], success["low"]) == ([0, 1, 2], [0.5, 1, 1], [0.25, 0.5, 0.5])
    assert charts["Mean reward by role"]["series"][1]["label"] == "reflection"


def test_text_of_the_policy_is_escaped(erl_run: Any) -> None:
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    assert "Say &lt;b&gt;b&lt;/b&gt; to go down." in page
    assert "<b>b</b>" not in page


def test_inputs_link_to_the_rows_of_their_artifacts(erl_run: Any) -> None:
    page = render_report(erl_run.store, erl_run.run, erl_run.description)
    outline = Outline(page)
    assert f"#artifact-{erl_run.checkpoints[0]}" in outline.links
    assert f'checkpoint&nbsp;<a href="#artifact-{erl_run.checkpoints[0]}' in page
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids)
    assert len(set(outline.ids)) == len(outline.ids)


def test_a_run_without_second_attempts_has_no_retries_memory_or_distillation(rlvr_run: Any) -> None:
    page = render_report(rlvr_run.store, rlvr_run.run, rlvr_run.description)
    headings = Outline(page).headings
    assert "Failed, and not tried again" in headings
    assert "Retries that succeed" not in page
    assert "Memory" not in page
    assert "Distilled" not in page


def test_a_run_that_has_done_nothing_yet_says_so(new_run: Any) -> None:
    page = render_report(new_run.store, new_run.run, new_run.description)
    assert "Not evaluated yet" in page
    assert "0 of 2 iterations" in page
    assert Outline(page).headings == ["new", "Settings", "Lineage", "How to reproduce it"]


def test_a_run_that_was_only_evaluated_shows_one_figure(new_run: Any) -> None:
    new_run.begin()
    new_run.evaluate(0, [True, False, False, False])
    page = render_report(new_run.store, new_run.run, new_run.description)
    assert "25 %" in page
    assert 'class="arrow"' not in page


def test_the_file_is_written_where_it_was_asked_for(rlvr_run: Any, tmp_path: Path) -> None:
    output = tmp_path / "reports" / "baseline.html"
    assert write_report(rlvr_run.store, rlvr_run.run, rlvr_run.description, output) == output
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_place_that_cannot_be_written_is_named(rlvr_run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written to .*file/report\.html"):
        write_report(rlvr_run.store, rlvr_run.run, rlvr_run.description, tmp_path / "file" / "report.html")


def test_a_damaged_artifact_is_named_and_not_shown(rlvr_run: Any, tmp_path: Path) -> None:
    (path,) = (tmp_path / "store" / "artifacts" / "rollout_shard").glob("*/trajectories.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    fresh = type(rlvr_run.store)(rlvr_run.store.uri)
    with pytest.raises(DamagedArtifact, match=r"trajectories\.parquet"):
        render_report(fresh, rlvr_run.run, rlvr_run.description)


def test_a_run_that_was_continued_is_reproduced_to_its_last_iteration(erl_run: Any, rlvr_run: Any) -> None:
    assert "--iterations" not in render_report(erl_run.store, erl_run.run, erl_run.description)
    for iteration in (2, 3):
        rlvr_run.iterate(iteration, [], {})
    page = render_report(rlvr_run.store, rlvr_run.run, rlvr_run.description)
    assert "erl-pipeline train baseline.yaml --store another-store --iterations 3" in page
    assert "3 of 3 iterations" in page
