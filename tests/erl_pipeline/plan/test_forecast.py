"""What a plan would reuse and compute, with plans and stores made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.forecast import (
    Cost,
    Forecast,
    PreviousArtifact,
    forecast,
    iterations_text,
    own_differences,
)
from erl_pipeline.plan.plan import Plan, PlannedStage, RunState, StageKey
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from storage.artifacts.recipe import Recipe


def _nothing(_call: StageCall[Settings]) -> StageResult:
    raise AssertionError("a forecast computes nothing")


def node(
    stage: str,
    iteration: int | None,
    inputs: Mapping[str, PlannedStage],
    settings: Mapping[str, Any],
    key: str = "",
) -> PlannedStage:
    recipe = Recipe(
        stage=stage,
        stage_version=1,
        settings=settings,
        inputs={name: made.artifact_id for name, made in inputs.items()},
        seed=iteration or 0,
        index={} if not key else {"shard": int(key)},
    )
    made = Stage(name=stage, version=1, output="table", settings=Settings, compute=_nothing)
    return PlannedStage(made, Settings(), recipe, iteration, key, recipe.artifact_id)


def plan_of(iterations: int, group_size: int = 8, first: int = 0) -> Plan:
    """Tasks, a first policy, and for each iteration two shards and a policy trained on them."""
    tasks = node("tasks", None, {}, {})
    policy = node("begin", None, {}, {"seed": first})
    nodes = [tasks, policy]
    for iteration in range(1, iterations + 1):
        shards = [
            node(
                "shard",
                iteration,
                {"checkpoint": policy, "tasks": tasks},
                {"rollouts": {"group_size": group_size}},
                key,
            )
            for key in ("0000", "0001")
        ]
        policy = node("train", iteration, {"checkpoint": policy, "a": shards[0], "b": shards[1]}, {})
        nodes += [*shards, policy]
    return Plan(tuple(nodes), tuple(RunState("", {}, {}) for _ in range(iterations + 1)))


@dataclass
class Known:
    """A hand-made store: artifact -> the run that made it, and the plan of the run `old`."""

    made: dict[str, str] = field(default_factory=dict)
    old: Plan | None = None
    costs: dict[str, Cost] = field(default_factory=dict)

    def made_by(self, node: PlannedStage) -> str | None:
        return self.made.get(node.artifact_id)

    def earlier(self, node: PlannedStage) -> PreviousArtifact | None:
        found = None if self.old is None else self.old.by_place.get(node.place)
        if found is None:
            return None
        return PreviousArtifact(
            "old", found.artifact_id, own_differences(found.recipe, node.recipe), found.recipe.inputs
        )

    def cost(self, stage: str) -> Cost:
        return self.costs.get(stage, Cost())


def kept(plan: Plan, run: str = "old") -> dict[str, str]:
    return {each.artifact_id: run for each in plan.nodes}


def why(found: Forecast) -> dict[StageKey, list[str]]:
    return {each.node.place: each.why for each in found.computed}


def test_an_empty_store_has_everything_to_compute() -> None:
    found = forecast(plan_of(2), Known())
    assert found.reused == []
    assert set(map(tuple, why(found).values())) == {("new",)}
    assert found.total == Cost()
    assert found.unknown == ["tasks", "begin", "shard", "train"]


def test_a_finished_run_has_nothing_to_compute() -> None:
    plan = plan_of(2)
    found = forecast(plan, Known(kept(plan)))
    assert found.computed == []
    assert [each.run for each in found.reused] == ["old"] * 8


def test_going_on_computes_what_is_new_only() -> None:
    two, three = plan_of(2), plan_of(3)
    found = forecast(three, Known(kept(two), two))
    assert why(found) == {
        StageKey(3, "shard", "0000"): ["new"],
        StageKey(3, "shard", "0001"): ["new"],
        StageKey(3, "train", ""): ["new"],
    }


def test_a_changed_setting_is_named_where_it_is_read_and_its_consequences_by_their_makers() -> None:
    old, new = plan_of(2), plan_of(2, group_size=4)
    found = forecast(new, Known(kept(old), old))
    changed = "rollouts.group_size: 8 -> 4"
    assert [each.node.stage.name for each in found.reused] == ["tasks", "begin"]
    assert why(found) == {
        StageKey(1, "shard", "0000"): [changed],
        StageKey(1, "shard", "0001"): [changed],
        # The same stage makes both shards; the first is shown for both.
        StageKey(1, "train", ""): ["input a (shard of the same iteration) is computed again"],
        StageKey(2, "shard", "0000"): [changed, "input checkpoint (train of iteration 1) is computed again"],
        StageKey(2, "shard", "0001"): [changed, "input checkpoint (train of iteration 1) is computed again"],
        StageKey(2, "train", ""): [
            "inputs checkpoint (train of iteration 1) and a (shard of the same iteration) are computed again"
        ],
    }


def test_an_input_that_is_another_and_in_the_store_is_named() -> None:
    old, new = plan_of(1), plan_of(1, first=5)
    begun = new.by_place[StageKey(0, "begin", "")]
    found = forecast(new, Known({**kept(old), begun.artifact_id: "other"}, old))
    assert why(found)[StageKey(1, "shard", "0000")] == ["input checkpoint is a different one: begin"]


def test_an_artifact_that_is_gone_is_computed_with_what_it_was_made_from() -> None:
    plan = plan_of(1)
    there = kept(plan)
    gone = plan.by_place[StageKey(1, "shard", "0001")]
    del there[gone.artifact_id]
    found = forecast(plan, Known(there, plan))
    assert why(found) == {gone.place: ["its artifact is no longer in the store"]}


def test_what_is_asked_for_again_is_computed_whatever_is_there() -> None:
    plan = plan_of(2)
    again = frozenset(each.place for each in plan.of_iteration(2))
    found = forecast(plan, Known(kept(plan), plan), again)
    assert {each.node.place for each in found.computed} == again
    assert why(found)[StageKey(2, "train", "")] == ["computed again, as `replay` does"]


def test_costs_are_added_and_what_is_unknown_is_said() -> None:
    costs = {"shard": Cost(2.0, 100.0, 50.0), "train": Cost(3.0, None, 1000.0)}
    old, new = plan_of(3), plan_of(3, group_size=4)
    found = forecast(new, Known(kept(old), old, costs))
    assert found.total == Cost(3 * 2 * 2.0 + 3 * 3.0, 600.0, 6 * 50.0 + 3 * 1000.0)
    assert found.unknown == []
    partly = forecast(plan_of(1), Known(costs={"shard": Cost(2.0, 100.0, 50.0)}))
    assert partly.total == Cost(4.0, 200.0, 100.0)
    assert partly.unknown == ["tasks", "begin", "train"]
    assert [row.cost for row in partly.rows() if row.stage == "train"] == [Cost()]


def test_a_thousand_iterations_make_few_rows() -> None:
    old, new = plan_of(1000), plan_of(1000, group_size=4)
    rows = forecast(new, Known(kept(old), old)).rows()
    assert [(row.stage, iterations_text(row.iterations), row.artifacts, row.verdict) for row in rows] == [
        ("tasks", "start", 1, "reused"),
        ("begin", "start", 1, "reused"),
        ("shard", "1", 2, "computed"),
        ("train", "1", 1, "computed"),
        ("shard", "2..1000", 1998, "computed"),
        ("train", "2..1000", 999, "computed"),
    ]
    assert rows[4].why == (
        "rollouts.group_size: 8 -> 4",
        "input checkpoint (train of the iteration before) is computed again",
    )


def test_differences_are_told_in_the_words_of_the_configuration() -> None:
    before = Recipe("s", 1, {"keep": {"max_entries": None}, "seed": 0}, {}, 0, code={"pack": "a"})
    after = Recipe("s", 2, {"keep": {"max_entries": 10}, "seed": 0}, {"x": "1"}, 3, code={"pack": "b"})
    assert own_differences(before, after, ["method.memory.max_entries: null -> 10"]) == (
        "method.memory.max_entries: null -> 10",
        "the code of pack has changed",
        "stage version: 1 -> 2",
        "seed: 0 -> 3",
    )


@pytest.mark.parametrize(
    ("iterations", "text"),
    [
        ([0], "start"),
        ([7], "7"),
        ([1, 2, 3], "1..3"),
        ([5, 10, 15], "5..15 every 5"),
        ([5, 10], "5, 10"),
        ([1, 2, 5, 9, 10], "1..2, 5, 9..10"),
        ([1, 3, 7, 12, 20, 30], "1, 3, 7, 12, ... 30"),
    ],
)
def test_iterations_in_few_words(iterations: list[int], text: str) -> None:
    assert iterations_text(iterations) == text
