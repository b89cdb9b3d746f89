"""`erl-pipeline memory` on a real run: what it answers agrees with the run's own Parquet, and it forgets."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.stages.columns import ENTRIES
from storage.artifacts.sealing import record_bytes
from tests.command_line.invoke import FinishedRun, invoke


def ask(store: Path, *words: str) -> Any:
    result = invoke("memory", *words, "--store", store, "--json")
    assert result.status == 0, result.errors
    return result.json


def trajectories(store: Path) -> pl.DataFrame:
    return pl.read_parquet(store / "artifacts" / "rollout_shard" / "*" / "trajectories.parquet")


def manifests(store: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(store): path.read_bytes() for path in store.glob("artifacts/*/*/*") if path.is_file()
    }


@pytest.fixture
def store(remembering: FinishedRun) -> Path:
    return remembering.store


@pytest.fixture
def copied(store: Path, tmp_path: Path) -> Path:
    shutil.copytree(store, tmp_path / "store")
    return tmp_path / "store"


def test_list_counts_retrievals_as_the_trajectories_do(store: Path) -> None:
    listed = ask(store, "list", "small", "--limit", "1000", "--sort", "retrieved")
    assert len(listed["shown"]) == listed["entries"]
    rows = trajectories(store).filter(role="reflection")
    seen = rows["memory_entry_ids"].explode().drop_nulls().to_list()
    assert {row["entry_id"]: row["retrievals"] for row in listed["shown"]} == {
        row["entry_id"]: seen.count(row["entry_id"]) for row in listed["shown"]
    }
    assert sum(row["retrievals"] for row in listed["shown"]) == len(seen)
    assert ask(store, "list", "small", "--environment", "sokoban")["shown"] == []
    then = ask(store, "list", "small", "--iteration", "1", "--limit", "1000")
    assert {row["iteration"] for row in then["shown"]} == {1}
    text = invoke("memory", "list", "small", "--store", store, "--limit", "1").output
    assert f"{listed['entries']} entries after iteration 3; 1 shown, newest first" in text


def test_an_entry_that_was_never_compared_has_no_credit(store: Path) -> None:
    listed = ask(store, "list", "small", "--limit", "1000")["shown"]
    never = next(row for row in listed if not row["credit_count"])
    often = next(row for row in listed if row["credit_count"])
    for row, shown in ((never, "-"), (often, f"{often['credit']:+.3f}")):
        told = invoke("memory", "show", "small", row["entry_id"], "--store", store).output
        assert f"credit {shown}, support {row['support']}" in told
    table = invoke("memory", "list", "small", "--limit", "1000", "--store", store).output
    assert table.count("+0.000") == sum(
        f"{row['credit']:+.3f}" == "+0.000" for row in listed if row["credit_count"]
    )


def test_stats_add_up(store: Path) -> None:
    found = ask(store, "stats", "small")
    rows = trajectories(store)
    reflections = rows.filter(role="reflection")
    helped = reflections.filter("success")
    assert found["entries"] == found["added"] == sum(row["added"] for row in found["versions"])
    assert found["entries"] == helped.select("task_type", "text").unique().height
    assert found["added"] + found["copies"] == found["support"] == helped.height
    saw = reflections.filter(pl.col("memory_entry_ids").list.len() > 0)
    free = reflections.filter(subgroup="free")
    assert (found["reflections"], found["withheld"]) == (reflections.height, free.height)
    assert (found["saw_memory"], found["retrievals"]) == (saw.height, saw.height)
    assert found["outcomes"]["guided"]["success"]["attempts"] == reflections.filter(subgroup="guided").height
    assert found["outcomes"]["free"]["success"]["attempts"] == free.height
    assert [row["iteration"] for row in found["versions"]] == [1, 2, 3]
    assert "reflections saw memory" in invoke("memory", "stats", "small", "--store", store).output


def test_memory_is_withheld_from_half_of_each_group(store: Path) -> None:
    """From two of four samples, from the second iteration on, when there is a memory."""
    rows = trajectories(store).filter(role="reflection")
    assert rows.filter(iteration=1)["subgroup"].null_count() == rows.filter(iteration=1).height
    later = rows.filter(pl.col("iteration") > 1)
    assert set(later["subgroup"]) == {"guided", "free"}
    assert later.filter(subgroup="free")["memory_entry_ids"].list.len().sum() == 0
    sizes = later.group_by("group_id", "subgroup").len()["len"]
    assert max(sizes.to_list()) <= 2


def test_the_credit_of_an_entry_is_what_its_trajectories_say(store: Path) -> None:
    listed = ask(store, "list", "small", "--limit", "1000", "--sort", "credit")["shown"]
    credits = ask(store, "stats", "small")["credits"]
    for row in listed:
        found = credits.get(row["entry_id"], {"value": 0.0, "count": 0})
        assert (row["credit"], row["credit_count"]) == (pytest.approx(found["value"]), found["count"])
    assert [row["credit"] for row in listed] == sorted((row["credit"] for row in listed), reverse=True)


def test_show_tells_where_an_entry_is_from_and_what_came_of_it(store: Path) -> None:
    entry = ask(store, "list", "small", "--sort", "retrieved", "--limit", "1")["shown"][0]
    shown = ask(store, "show", "small", entry["entry_id"][:14], "--policies")
    assert shown["entry_id"] == entry["entry_id"]
    rows = trajectories(store)
    source = rows.filter(trajectory_id=shown["source_trajectory_id"]).row(0, named=True)
    assert (source["text"], source["success"]) == (shown["text"], True)
    assert sum(row["retrievals"] for row in shown["retrievals"]) == entry["retrievals"]
    retrieved = {row["iteration"] for row in shown["retrievals"]}
    assert min(retrieved) > shown["iteration"]
    assert {policy["iteration"] for policy in shown["policies"]["trained_with_it"]} == retrieved
    assert {policy["iteration"] for policy in shown["policies"]["trained_on_its_source"]} == {
        shown["iteration"]
    }
    text = invoke("memory", "show", "small", entry["entry_id"], "--store", store).output
    assert f"source trajectory: {shown['source_trajectory_id']}" in text
    assert "\ncredit: " in text


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_search_says_how_it_searched(store: Path, mode: str) -> None:
    words = ["search", "small", "fell", "--mode", mode, "--min-credit", "-0.5", "--since", "1", "--exact"]
    found = ask(store, *words)
    assert (found["mode"], found["vector_search"]) == (mode, "exact")
    assert all(hit["environment"] == "frozen_lake" for hit in found["found"])
    text = invoke("memory", "search", "small", "fell", "--mode", mode, "--store", store).output
    assert f"\nscore: {found['score_is']}\n" in text
    assert {"vector": "cosine", "text": "BM25", "hybrid": "reciprocal ranks"}[mode] in found["score_is"]


@pytest.mark.parametrize(
    "words",
    [
        ("list", "small", "--min-credit", "nan"),
        ("list", "small", "--min-credit", "inf"),
        ("search", "small", "x", "--top-k", "999999999999999"),
        ("search", "small", "x", "--since", "99999999999999999999"),
        ("list", "small", "--limit", "99999999999999999999"),
    ],
)
def test_a_number_that_nothing_can_have_is_refused(store: Path, words: tuple[str, ...]) -> None:
    said = invoke("memory", *words, "--store", store)
    assert (said.status, "should be less than or equal to" in said.errors) == (2, True), said.errors


def test_search_shows_near_duplicates_only_when_asked(store: Path) -> None:
    entries = ask(store, "list", "small")["entries"]
    folded = ask(store, "search", "small", "x", "--top-k", "99")["found"]
    every = ask(store, "search", "small", "x", "--top-k", "99", "--duplicates")["found"]
    assert len(every) == entries == len(folded) + sum(len(hit["alike"]) for hit in folded)
    assert all(hit["alike"] == [] for hit in every)


def test_export_writes_what_the_memory_holds(store: Path, tmp_path: Path) -> None:
    entries = ask(store, "list", "small")["entries"]
    for name in ("memory.jsonl", "memory.parquet"):
        written = ask(store, "export", "small", "--output", str(tmp_path / name))
        assert written["entries"] == entries
    lines = [json.loads(line) for line in (tmp_path / "memory.jsonl").read_text().splitlines()]
    frame = pl.read_parquet(tmp_path / "memory.parquet")
    assert frame["entry_id"].to_list() == [line["entry_id"] for line in lines]
    assert len(frame["vector"][0]) == 384
    words = ["memory", "export", "small", "--output", tmp_path / "memory.jsonl", "--store", store]
    kept = invoke(*words)
    assert (kept.status, "exists already; --replace overwrites it" in kept.errors) == (2, True)
    assert invoke(*words, "--replace").status == 0
    refused = invoke("memory", "export", "small", "--output", tmp_path / "memory.csv", "--store", store)
    assert (refused.status, "name a file that ends in .parquet or .jsonl" in refused.errors) == (2, True)


def test_after_forgetting_a_run_goes_on_without_the_entry_and_makes_nothing_again(
    copied: Path, remembering: FinishedRun
) -> None:
    before = manifests(copied)
    entry = ask(copied, "list", "small", "--sort", "retrieved", "--limit", "1")["shown"][0]["entry_id"]
    words = ["memory", "forget", "small", entry[:14], "--reason", "it misleads \udcff", "--store", copied]
    told = invoke(*words)
    assert (told.status, "with which iteration 4 begins" in told.output) == (0, True)
    assert "trained on the reflection itself" in told.output
    assert "may write it again; then it is a new entry." in told.output
    assert invoke(*words).status == 2
    shown = ask(copied, "show", "small", entry)
    assert (shown["removed"]["reason"], shown["removed"]["detail"]) == ("forgotten", "it misleads \ufffd")

    went_on = invoke("train", remembering.config, "--store", copied, "--no-prefect", "--iterations", "4")
    assert went_on.status == 0, went_on.errors
    after = manifests(copied)
    assert {path: after[path] for path in before} == before
    again = [path.parts[1] for path in after.keys() - before.keys()]
    assert again.count("forget_memory") == 2  # its manifest and its removals: made by `forget`, not again
    seen = trajectories(copied).filter(iteration=4)["memory_entry_ids"].explode().drop_nulls()
    assert entry not in seen.to_list()
    assert entry not in {row["entry_id"] for row in ask(copied, "list", "small", "--limit", "99")["shown"]}
    assert invoke("lineage", "verify", "small", "--store", copied).status == 0


def test_a_run_keeps_its_memory_small(copied: Path, remembering: FinishedRun) -> None:
    limits = ("merge_similarity=0.9", "max_entries=3", "evict=lowest_credit")
    settings = [word for limit in limits for word in ("--set", f"method.memory.{limit}")]
    words = ["--name", "tidy", *settings, "--store", copied, "--no-prefect"]
    trained = invoke("train", remembering.config, *words)
    assert trained.status == 0, trained.errors
    found = ask(copied, "stats", "tidy")
    assert found["entries"] == found["added"] - found["evicted"] <= 3
    assert found["copies"] + found["evicted"] > 0
    assert max(row["entries"] for row in found["versions"]) <= 3
    rows = invoke("status", "tidy", "--store", copied, "--json").json["rows"]
    assert [row[ENTRIES.name] for row in rows[1:]] == [row["entries"] for row in found["versions"]]
    assert invoke("lineage", "verify", "tidy", "--store", copied).status == 0


def test_a_run_without_memory_says_so(copied: Path) -> None:
    path = copied / "runs" / "small" / "run.json"
    run = json.loads(path.read_text())
    config = {**run["config"], "method": {**run["config"]["method"], "memory": None}}
    path.write_bytes(record_bytes({"name": "small", "config": config}))
    for words in (["stats", "small"], ["search", "small", "x"], ["list", "small"]):
        result = invoke("memory", *words, "--store", copied)
        assert (result.status, "memory: off" in result.errors) == (2, True)
