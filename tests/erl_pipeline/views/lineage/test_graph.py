from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from erl_pipeline.views.lineage.graph import LineageBox, RunLineage, graph_text, run_lineage
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore
from tests.histories import History


def box(lineage: RunLineage, iteration: int, stage: str) -> tuple[int, LineageBox]:
    (found,) = [
        (number, box)
        for number, box in enumerate(lineage.boxes)
        if (box.iteration, box.stage) == (iteration, stage)
    ]
    return found


@pytest.fixture(scope="module")
def base(history: History) -> RunLineage:
    return run_lineage(history.store, history.runs, "base")


def test_a_box_is_a_stage_in_an_iteration_and_holds_its_shards(history: History, base: RunLineage) -> None:
    assert base.iterations == [0, 1, 2]
    _, shards = box(base, 2, "rollout_shard")
    assert shards.artifact_ids == (history.ids["shard-2"], history.ids["shard-3"])
    assert box(base, 1, "evaluate")[1].kind == "evaluation"


def test_links_say_by_which_input_and_end_within_the_graph(history: History, base: RunLineage) -> None:
    shards, _ = box(base, 2, "rollout_shard")
    into = {(link.source, link.name) for link in base.links if link.target == shards}
    tuned, memory = box(base, 1, "fine_tune")[0], box(base, 1, "index_memory")[0]
    assert into == {(tuned, "checkpoint"), (memory, "memory")}
    late = run_lineage(history.store, history.runs, "base", (2, 2))
    assert late.iterations == [2]
    assert late.caption == "iterations 2 to 2 of 2; --iteration A..B shows others"
    assert {end for link in late.links for end in (link.source, link.target)} <= set(range(len(late.boxes)))


def test_what_runs_share_is_marked(history: History, base: RunLineage) -> None:
    assert box(base, 1, "rollout_shard")[1].shared_with == ("branch",)
    assert box(base, 1, "update_policy")[1].shared_with == ()
    branch = run_lineage(history.store, history.runs, "branch")
    assert box(branch, 1, "generate_rollouts")[1].shared_with == ("base",)
    assert "shared with base" in graph_text(branch, ".mmd")


def test_of_a_row_only_what_it_came_from_and_reached_is_shown(history: History) -> None:
    found = run_lineage(history.store, history.runs, "base", of="m-1")
    shown = {artifact for box in found.boxes for artifact in box.artifact_ids}
    above = {"bootstrap", "shard", "rollouts", "memory"}
    # The rows that saw it are in the second shard; the third was neither made from it nor led to it.
    below = {"shard-2", "rollouts-2", "update-2", "tuned-2", "scores-2"}
    assert shown == {history.ids[name] for name in above | below}
    assert [box.artifact_ids for box in found.boxes if box.chosen] == [(history.ids["memory"],)]


def test_iterations_after_the_last_that_it_reached_are_refused(history: History) -> None:
    # It was made from artifacts of iteration 1 and before, and nothing was made from it.
    with pytest.raises(InputError, match="the last one to show is 1"):
        run_lineage(history.store, history.runs, "base", (2, 2), of=history.ids["scores"])


def test_a_run_that_has_only_begun_is_shown(history: History) -> None:
    begun = history.runs.create("begun", {})
    begun.record(None, "bootstrap", history.ids["bootstrap"], kind="checkpoint", reused=True, seconds=0.0)
    found = run_lineage(history.store, history.runs, "begun")
    assert (found.iterations, [box.stage for box in found.boxes]) == ([0], ["bootstrap"])


def test_every_format_has_every_box_and_link(base: RunLineage) -> None:
    boxes, links = range(len(base.boxes)), [(link.source, link.target, link.name) for link in base.links]
    mermaid = graph_text(base, ".mmd")
    assert [int(each) for each in re.findall(r"^    n(\d+)\[", mermaid, re.MULTILINE)] == sorted(
        boxes, key=lambda number: (base.boxes[number].iteration, number)
    )
    drawn = [(int(a), int(b), name) for a, name, b in re.findall(r"n(\d+) -->\|(\w+)\| n(\d+)", mermaid)]
    assert drawn == links
    assert [each["stage"] for each in json.loads(graph_text(base, ".json"))["boxes"]] == [
        box.stage for box in base.boxes
    ]


def test_a_long_run_is_shown_in_part(tmp_path: Path) -> None:
    store, runs = ArtifactStore(str(tmp_path)), RunStore(str(tmp_path))
    run = runs.create("long", {})
    for iteration in range(1, 101):
        recipe = Recipe("evaluate", 1, {"iteration": iteration % 2}, {}, iteration)
        with store.create(recipe, run="long", iteration=iteration) as staging:
            staging.commit()
        run.record(iteration, "evaluate", recipe.artifact_id, kind="evaluation", reused=False, seconds=0.0)
    found = run_lineage(store, runs, "long")
    assert found.iterations == list(range(95, 101))
    assert found.caption == "iterations 95 to 100 of 100; --iteration A..B shows others"
    with pytest.raises(InputError, match="the last one to show is 100"):
        run_lineage(store, runs, "long", (101, 102))
    ninetieth = run.stages()[89].artifact_id
    assert run_lineage(store, runs, "long", of=ninetieth).iterations == [90]
    with pytest.raises(InputError, match=f"there is nothing of {ninetieth} in them"):
        run_lineage(store, runs, "long", (1, 3), of=ninetieth)
