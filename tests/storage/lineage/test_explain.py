from __future__ import annotations

from typing import Any

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.reach import explain


def test_rows_are_told_with_what_was_said(tiny_run: Any) -> None:
    _, reflection = explain(tiny_run.store, tiny_run.run, "reflection", 1)
    assert (reflection["text"], reflection["artifact_id"]) == ("go right", tiny_run.shard)
    _, first = explain(tiny_run.store, tiny_run.run, "first", 1)
    assert (first["feedback"], first["reward"]) == ("fell into B", 0.0)
    assert first["messages"][-1] == {"role": "assistant", "content": "left"}
    _, taught = explain(tiny_run.store, tiny_run.run, "s-second", 1)
    assert taught["messages"][-1]["role"] == "assistant"
    _, entry = explain(tiny_run.store, None, "m-001", 1)
    assert (entry["text"], entry["artifact_id"]) == ("reflection 1", tiny_run.memory)
    reach, _ = explain(tiny_run.store, tiny_run.run, "s-second", 2)
    told = {thing.id: thing.facts for thing in reach.things}
    assert told["reflection"]["text"] == "go right", "and so are the rows that it came from"
    reach, artifact = explain(tiny_run.store, tiny_run.run, tiny_run.dataset[:10], 1)
    assert (reach.id, artifact["stage"]) == (tiny_run.dataset, "build_distillation")


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_origins_are_as_many_steps_away_as_asked(tiny_run: Any, depth: int) -> None:
    reach, _ = explain(tiny_run.store, tiny_run.run, "s-second", depth)
    assert max((thing.depth for thing in reach.things), default=0) == depth


def test_an_id_must_name_one_thing(tiny_run: Any) -> None:
    assert explain(tiny_run.store, tiny_run.run, "refl", 2)[0].id == "reflection"
    with pytest.raises(InputError, match="no artifact, trajectory, SFT row or memory entry has an id 'zzz'"):
        explain(tiny_run.store, tiny_run.run, "zzz", 2)
    with pytest.raises(InputError, match=r"ids begin with 's': .*s-second \(sft_row\).* Give more of the id"):
        explain(tiny_run.store, tiny_run.run, "s", 2)
    with pytest.raises(InputError, match="Give an id"):
        explain(tiny_run.store, tiny_run.run, "", 2)


def test_a_run_sees_its_own_artifacts_only(tiny_run: Any) -> None:
    other = Recipe("evaluate", 1, {"other": True}, {}, 0)
    store: ArtifactStore = tiny_run.store
    with store.create(other, run="other", iteration=1) as staging:
        staging.commit()
    assert explain(store, None, other.artifact_id, 2)[0].id == other.artifact_id
    with pytest.raises(InputError, match="no artifact"):
        explain(store, tiny_run.run, other.artifact_id, 2)
