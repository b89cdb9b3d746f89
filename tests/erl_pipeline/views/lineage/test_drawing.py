from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from erl_pipeline.plan.column import Column
from erl_pipeline.views.lineage.drawing import LINE_CHARACTERS, draw
from erl_pipeline.views.lineage.grid import MOST_ITERATIONS, Box, Grid, lay_out
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore
from tests.histories import History

COLUMNS = (Column("evaluate", "greedy_success", "held-out", ""),)
SVG = "{http://www.w3.org/2000/svg}"


def box(grid: Grid, row: str, stage: str) -> tuple[int, Box]:
    (found,) = [
        (number, box)
        for number, box in enumerate(grid.boxes)
        if (grid.rows[box.row], box.stage) == (row, stage)
    ]
    return found


@pytest.fixture(scope="module")
def grid(history: History) -> Grid:
    return lay_out(history.store, history.runs, "base", COLUMNS)


def test_iterations_are_rows_and_stages_columns(grid: Grid) -> None:
    assert grid.rows == ("before", "iteration 1", "iteration 2")
    columns = {box.stage: box.column for box in grid.boxes}
    assert columns == {
        "bootstrap": 0,
        "rollout_shard": 0,
        "generate_rollouts": 1,
        "index_memory": 2,
        "update_policy": 3,
        "build_distillation": 4,
        "fine_tune": 5,
        "evaluate": 6,
    }


def test_shards_of_an_iteration_are_one_box(history: History, grid: Grid) -> None:
    _, shards = box(grid, "iteration 2", "rollout_shard")
    assert shards.artifact_ids == (history.ids["shard-2"], history.ids["shard-3"])
    tuned, memory = history.ids["tuned"][:8], history.ids["memory"][:8]
    assert shards.lines == ("2 artifacts", f"policy {tuned}", f"memory {memory}", "4 rows")


def test_a_box_tells_the_columns_of_its_stage(history: History, grid: Grid) -> None:
    _, scores = box(grid, "iteration 1", "evaluate")
    assert scores.lines[-2:] == ("1 row", "held-out 0.250")
    assert scores.kind == "evaluation"


def test_arrows_go_to_this_row_and_the_next_and_other_inputs_are_named(history: History, grid: Grid) -> None:
    shards, _ = box(grid, "iteration 2", "rollout_shard")
    tuned, _ = box(grid, "iteration 1", "fine_tune")
    into = {(arrow.source, arrow.name) for arrow in grid.arrows if arrow.target == shards}
    memory, _ = box(grid, "iteration 1", "index_memory")
    assert into == {(tuned, "checkpoint"), (memory, "memory")}
    late = lay_out(history.store, history.runs, "base", COLUMNS, (2, 2))
    assert late.rows == ("iteration 2",)
    assert "iterations 2 to 2 of 2; --iteration A..B draws others" in late.caption


def test_what_runs_share_is_marked(history: History, grid: Grid) -> None:
    assert box(grid, "iteration 1", "rollout_shard")[1].shared_with == ("branch",)
    assert box(grid, "iteration 1", "update_policy")[1].shared_with == ()
    branch = lay_out(history.store, history.runs, "branch", COLUMNS)
    assert box(branch, "iteration 1", "generate_rollouts")[1].shared_with == ("base",)
    assert "shared with base" in draw(branch, ".svg")


def test_of_a_row_only_what_it_came_from_and_reached_is_drawn(history: History) -> None:
    grid = lay_out(history.store, history.runs, "base", COLUMNS, of="m-1")
    drawn = {artifact for box in grid.boxes for artifact in box.artifact_ids}
    above = {"bootstrap", "shard", "rollouts", "memory"}
    # The rows that saw it are in the second shard; the third was neither made from it nor led to it.
    below = {"shard-2", "rollouts-2", "update-2", "tuned-2", "scores-2"}
    assert drawn == {history.ids[name] for name in above | below}
    chosen = [box.artifact_ids for box in grid.boxes if box.chosen]
    assert chosen == [(history.ids["memory"],)]


def test_iterations_after_the_last_that_it_reached_are_refused(history: History) -> None:
    # It was made from artifacts of iteration 1 and before, and nothing was made from it.
    with pytest.raises(InputError, match="the last one to show is 1"):
        lay_out(history.store, history.runs, "base", COLUMNS, (2, 2), of=history.ids["scores"])


def test_a_run_that_has_only_begun_is_drawn(history: History) -> None:
    begun = history.runs.create("begun", {})
    begun.record(None, "bootstrap", history.ids["bootstrap"], kind="checkpoint", reused=True, seconds=0.0)
    grid = lay_out(history.store, history.runs, "begun", ())
    assert grid.rows == ("before",)
    assert [box.stage for box in grid.boxes] == ["bootstrap"]
    ElementTree.fromstring(draw(grid, ".svg"))


def test_the_picture_has_a_box_for_each_place_and_no_box_lies_on_another(grid: Grid) -> None:
    root = ElementTree.fromstring(draw(grid, ".svg"))
    groups = [group for group in root.iter(f"{SVG}g") if "box" in group.get("class", "").split()]
    assert len(groups) == len(grid.boxes)
    fronts = [group.find(f"{SVG}rect[@class='front']") for group in groups]
    sides = [
        tuple(float(front.get(name, "nan")) for name in ("x", "y", "width", "height"))
        for front in fronts
        if front is not None
    ]
    assert len(sides) == len(grid.boxes)
    for number, (x, y, width, height) in enumerate(sides):
        assert 0 <= x <= x + width <= float(root.get("width", "nan"))
        assert 0 <= y <= y + height <= float(root.get("height", "nan"))
        for other_x, other_y, _, _ in sides[number + 1 :]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height
    texts = [text.text or "" for group in groups for text in group.iter(f"{SVG}text")]
    assert max(map(len, texts)) <= LINE_CHARACTERS


def test_every_arrow_begins_and_ends_at_its_boxes(grid: Grid) -> None:
    root = ElementTree.fromstring(draw(grid, ".svg"))
    drawn = {
        (int(path.get("data-source", "")), int(path.get("data-target", "")))
        for path in root.iter(f"{SVG}path")
        if path.get("data-source")
    }
    assert drawn == {(arrow.source, arrow.target) for arrow in grid.arrows}


def test_the_page_is_complete_in_itself_and_its_data_cannot_end_the_script(grid: Grid) -> None:
    page = draw(grid, ".html")
    assert not re.search(r'(src|href)="(?!#)', page)
    data = re.search(r'<script type="application/json" id="lineage">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert len(json.loads(data[1])["boxes"]) == len(grid.boxes)
    assert "</" not in data[1]


def test_a_long_run_is_drawn_in_part_and_more_than_can_be_read_is_refused(tmp_path: Path) -> None:
    store, runs = ArtifactStore(str(tmp_path)), RunStore(str(tmp_path))
    run = runs.create("long", {})
    for iteration in range(1, 101):
        recipe = Recipe("evaluate", 1, {"iteration": iteration % 2}, {}, iteration)
        with store.create(recipe, run="long", iteration=iteration) as staging:
            staging.commit()
        run.record(iteration, "evaluate", recipe.artifact_id, kind="evaluation", reused=False, seconds=0.0)
    grid = lay_out(store, runs, "long", ())
    assert grid.iterations == tuple(range(95, 101))
    assert grid.caption == "iterations 95 to 100 of 100; --iteration A..B draws others"
    with pytest.raises(InputError, match=f"are 100 iterations; at most {MOST_ITERATIONS}"):
        lay_out(store, runs, "long", (), (1, 200))
    with pytest.raises(InputError, match="the last one to show is 100"):
        lay_out(store, runs, "long", (), (101, 102))
    ninetieth = run.stages()[89].artifact_id
    assert lay_out(store, runs, "long", (), of=ninetieth).iterations == (90,)
    with pytest.raises(InputError, match=f"there is nothing of {ninetieth} in them"):
        lay_out(store, runs, "long", (), (1, 3), of=ninetieth)
