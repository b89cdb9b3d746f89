from __future__ import annotations

from typing import Any

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage import LineageNode, explain


def outline(node: LineageNode) -> list[Any]:
    """(relation, kind, id) of a node and, nested, of its origins."""
    return [(node.relation, node.kind, node.id), *[outline(origin) for origin in node.origins]]


def test_an_sft_row_leads_to_reflection_first_attempt_and_policy(tiny_run: Any) -> None:
    node = explain(tiny_run.store, tiny_run.run, "s-second", depth=9)
    policy = ("policy that sampled it", "artifact", tiny_run.checkpoint)
    assert outline(node) == [
        ("", "sft_row", "s-second"),
        [
            ("trajectory that it teaches", "trajectory", "second"),
            [
                ("trajectory it followed", "trajectory", "reflection"),
                [("trajectory it followed", "trajectory", "first"), [policy]],
                [policy],
            ],
            [policy],
        ],
    ]
    reflection = node.origins[0].origins[0]
    assert reflection.facts["text"] == "go right"
    assert reflection.facts["artifact_id"] == tiny_run.shard
    first = reflection.origins[0]
    assert (first.facts["feedback"], first.facts["reward"]) == ("fell into B", 0.0)
    assert first.facts["messages"][-1] == {"role": "assistant", "content": "left"}
    assert reflection.origins[1].more == "shown above"


def test_a_memory_entry_leads_to_the_reflection_it_holds(tiny_run: Any) -> None:
    node = explain(tiny_run.store, None, "m-001")
    assert node.facts["text"] == "reflection 1"
    assert node.facts["artifact_id"] == tiny_run.memory
    assert outline(node.origins[0])[0] == ("trajectory it was taken from", "trajectory", "reflection")


def levels(node: LineageNode) -> int:
    """How many steps a tree goes below its root."""
    return max((1 + levels(origin) for origin in node.origins), default=0)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_tree_goes_as_many_steps_as_asked_whatever_lies_on_the_way(tiny_run: Any, depth: int) -> None:
    node = explain(tiny_run.store, tiny_run.run, "s-second", depth=depth)
    assert levels(node) == depth
    assert (node.more == "deeper") == (depth == 0)


def test_an_artifact_leads_to_its_inputs_as_deep_as_asked(tiny_run: Any) -> None:
    node = explain(tiny_run.store, tiny_run.run, tiny_run.dataset[:10], depth=2)
    assert outline(node) == [
        ("", "artifact", tiny_run.dataset),
        [
            ("input rollouts", "artifact", tiny_run.rollouts),
            [("input shard-0000", "artifact", tiny_run.shard)],
        ],
    ]
    assert node.origins[0].origins[0].more == "deeper"


def test_an_id_must_name_one_thing(tiny_run: Any) -> None:
    assert explain(tiny_run.store, tiny_run.run, "refl").id == "reflection"
    with pytest.raises(InputError, match="no artifact, trajectory, SFT row or memory entry has an id 'zzz'"):
        explain(tiny_run.store, tiny_run.run, "zzz")
    with pytest.raises(InputError, match=r"ids begin with 's': .*s-second \(sft_row\).* Give more of the id"):
        explain(tiny_run.store, tiny_run.run, "s")
    with pytest.raises(InputError, match="Give an id"):
        explain(tiny_run.store, tiny_run.run, "")


def test_a_run_sees_its_own_artifacts_only(tiny_run: Any) -> None:
    other = Recipe("evaluate", 1, {"other": True}, {}, 0)
    store: ArtifactStore = tiny_run.store
    with store.create(other, run="other", iteration=1) as staging:
        staging.commit()
    assert explain(store, None, other.artifact_id).id == other.artifact_id
    with pytest.raises(InputError, match="no artifact"):
        explain(store, tiny_run.run, other.artifact_id)
