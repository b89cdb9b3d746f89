"""Nights: a served policy learns from what people said of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.config.pipeline import RetentionConfig
from erl_pipeline.serving.learning import gate, promotion
from erl_pipeline.serving.learning.collect import collect, sealed_batches
from erl_pipeline.serving.learning.nights import _origins_of_nights, _require_learnable, night_name
from erl_pipeline.serving.learning.promotion import promote, roll_back
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError, Interrupted
from storage.lineage.trained_on import RowFilter, TrainedOn
from storage.runs.documents import OfflineOrigin, write_origin
from storage.runs.run import RunStore
from storage.serving.aliases import AliasChange, alias_changes, current_aliases, verdicts
from storage.serving.traffic import ServedTurn
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import small
from tests.erl_pipeline.serving.learning.served_traffic import RUN, TOMORROW, conversations, log
from tests.erl_pipeline.serving.learning.small_nights import (
    begin_production,
    due,
    judged,
    night_of,
    settings,
    slept,
)


def test_without_a_checkpoint_that_serves_there_is_no_night(served: Path) -> None:
    log(served, *conversations(served, 8, "policy"))

    with pytest.raises(InputError, match="means nothing yet"):
        due(served)


def test_too_few_rated_episodes_wait_for_more(served: Path) -> None:
    policy = begin_production(served)
    log(served, *conversations(served, 7, policy))

    found = due(served)

    assert found.night is None
    assert "7 of 8 rated episodes" in found.reason
    assert found.collected is not None
    assert found.collected.batch is None


def test_a_night_trains_on_what_people_rated_and_makes_a_candidate(served: Path) -> None:
    policy = begin_production(served)
    log(served, *conversations(served, 16, policy))
    night = night_of(due(served))

    slept(served, night)
    result = judged(served, night)

    assert (night.name, night.rated) == ("small-night-001", 16)
    assert result.verdict.passed
    assert result.change is not None
    assert (result.change.alias, result.change.run) == ("candidate", "small-night-001")
    # Two tasks, each with a greedy and a sampled attempt.
    assert result.change.gate["held_out_tasks"] == 2
    assert current_aliases(str(served), RUN)["production"].checkpoint_id == policy
    store = ArtifactStore(str(served))
    rows = TrainedOn(store, result.verdict.checkpoint_id).rows(RowFilter()).collect()
    own = rows.filter(pl.col("how") == "directly")
    # Half of them have reward 1: of the 15 others of each, 8 have the other reward.
    assert sorted(own["advantage"].to_list()) == pytest.approx([-8 / 15] * 8 + [8 / 15] * 8)
    assert verify_run(store, RunStore(str(served)).open(night.name)).problems == []


def test_the_thousandth_night_comes_after_those_before_it(tmp_path: Path) -> None:
    uri = str(tmp_path)
    for number in (1000, 999):
        RunStore(uri).create(night_name(RUN, number), {})
        origin = OfflineOrigin(
            run=f"{RUN}-traffic",
            first_iteration=number,
            last_iteration=number,
            checkpoint_id=None,
            evaluates=False,
        )
        write_origin(uri, night_name(RUN, number), origin)

    assert list(_origins_of_nights(uri, RUN)) == [f"{RUN}-night-999", f"{RUN}-night-1000"]


def test_of_more_batches_than_max_age_the_newest_are_trained_on(served: Path) -> None:
    """Four wait, each sealed by a `collect` of its own; two are the most."""
    policy = begin_production(served)
    for number in range(4):
        log(served, *conversations(served, 8, policy, first=100 * number))
        assert collect(str(served), RUN, settings().episode, TOMORROW).batch is not None

    night = night_of(due(served, max_age=2))

    assert (night.origin.first_iteration, night.origin.last_iteration) == (3, 4)
    assert (night.rated, night.too_old) == (16, 16)
    slept(served, night)
    made = ArtifactStore(str(served)).open(judged(served, night).verdict.checkpoint_id).manifest
    assert made.counters.get("dropped_too_old", 0) == 0


def test_batches_that_are_too_old_do_not_make_a_night(served: Path) -> None:
    policy = begin_production(served)
    log(served, *conversations(served, 8, policy))
    assert collect(str(served), RUN, settings().episode, TOMORROW).batch is not None
    log(served, *conversations(served, 1, policy, first=100))

    found = due(served, max_age=1)

    assert found.night is None
    assert "1 of 8 rated episodes" in found.reason


def test_what_cannot_be_trained_on_is_not_sealed_for_want_of_others(served: Path) -> None:
    policy = begin_production(served)
    cold = [
        replace_turn(each) if isinstance(each, ServedTurn) else each
        for each in conversations(served, 6, policy, first=100)
    ]
    log(served, *conversations(served, 3, policy), *cold)

    found = due(served)

    assert found.night is None
    assert "3 of 8 rated episodes" in found.reason
    assert found.collected is not None
    assert found.collected.batch is None
    log(served, *conversations(served, 7, policy, first=200))
    assert night_of(due(served)).rated == 10


def replace_turn(turn: ServedTurn) -> ServedTurn:
    return turn.model_copy(update={"temperature": 0.0, "not_trainable": "its temperature is 0"})


def test_promoting_what_an_alias_means_keeps_the_way_back(served: Path) -> None:
    good = begin_production(served)
    made = [e.artifact_id for e in RunStore(str(served)).open(RUN).stages() if e.kind == "checkpoint"]
    other = next(each for each in made if each != good)
    for _ in range(2):
        promote(str(served), RUN, "production", other, settings().gate, "me", why="try", without_gate=True)
    assert len(alias_changes(str(served), RUN)) == 3  # A server that could not open it tries again.
    assert roll_back(str(served), RUN, "production", "me").checkpoint_id == good


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_checkpoint_whose_weights_are_gone_is_not_promoted(
    served: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    """Also when they go after promotion has begun."""
    good = begin_production(served)
    store = ArtifactStore(str(served))
    made = [e.artifact_id for e in RunStore(str(served)).open(RUN).stages() if e.kind == "checkpoint"]
    other = next(each for each in made if each != good)

    def prune(*_: object) -> dict[str, AliasChange]:
        store.prune(other, ["model/model.safetensors"], "retention.checkpoints")
        return {}

    if meanwhile:
        monkeypatch.setattr(promotion, "current_aliases", prune)
    else:
        prune()
    with pytest.raises(
        InputError, match=r"were pruned on .* by retention\.checkpoints; promote one that still"
    ):
        promote(str(served), RUN, "production", other, settings().gate, "me", why="try", without_gate=True)


def test_a_gate_that_does_not_pass_changes_no_alias_and_is_remembered(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = begin_production(served)
    log(served, *conversations(served, 8, policy))
    night = night_of(due(served))
    slept(served, night)
    monkeypatch.setattr(gate, "held_out_rewards", lambda _store, _run, iteration: {"task": 1.0 - iteration})

    result = judged(served, night, held_out_drop=0.5)

    assert (result.verdict.passed, result.change) == (False, None)
    assert "held-out reward -1.000" in result.verdict.reason
    assert verdicts(str(served), RUN) == [result.verdict]
    assert current_aliases(str(served), RUN).keys() == {"production"}
    with pytest.raises(InputError, match=r"did not pass: held-out reward -1\.000"):
        promote(str(served), RUN, "production", result.verdict.checkpoint_id, settings().gate, "me")
    assert due(served).night is None


def test_a_rollback_while_a_night_trains_is_not_undone(served: Path) -> None:
    good, given = begin_production(served), settings().gate
    made = [e.artifact_id for e in RunStore(str(served)).open(RUN).stages() if e.kind == "checkpoint"]
    bad = next(each for each in made if each != good)
    promote(str(served), RUN, "production", bad, given, "me", why="try", without_gate=True)
    log(served, *conversations(served, 8, bad))
    night = night_of(due(served))
    roll_back(str(served), RUN, "production", "me", "bad answers")
    slept(served, night)

    result = judged(served, night, promotes=True)

    assert (result.verdict.passed, result.verdict.against, result.change) == (True, bad, None)
    assert result.kept.startswith(f"production means checkpoint {good[:12]} by now")
    assert current_aliases(str(served), RUN)["production"].checkpoint_id == good
    learned = result.verdict.checkpoint_id
    with pytest.raises(InputError, match=f"with {bad[:12]}, and production means {good[:12]} by now"):
        promote(str(served), RUN, "production", learned, given, "me")


@pytest.mark.parametrize("young_first", [True, False])
def test_a_conversation_may_change_its_checkpoint(served: Path, young_first: bool) -> None:
    """Its second token sequence is of another checkpoint. Each is trained where it is young enough, and the
    second one only with the first, whose advantage it has."""
    policy = begin_production(served)
    records = conversations(served, 8, policy)
    turns = [each for each in records if isinstance(each, ServedTurn)]
    first, second = (policy, "canary") if young_first else ("canary", policy)
    changed = turns[0].model_copy(update={"policy_version": first})
    later = {"turn_id": "again", "call_id": "call-again", "policy_version": second}
    again = turns[0].model_copy(update={**later, "arrived": turns[0].arrived + timedelta(seconds=1)})
    log(served, changed, again, *records[1:])
    night = night_of(due(served))
    slept(served, night)
    made = ArtifactStore(str(served)).open(judged(served, night).verdict.checkpoint_id)
    assert made.manifest.counters["dropped_too_old"] == (1 if young_first else 2)
    assert made.manifest.counters["sequences"] == (8 if young_first else 7)


def test_nothing_is_sealed_for_a_night_that_cannot_be_begun(served: Path) -> None:
    policy = begin_production(served)
    log(served, *conversations(served, 8, policy))
    with pytest.raises(ConfigError, match=r"(?s)learn\.reflect .* served_feedback\.reflect: user; method"):
        due(served, reflect="user")
    own = {"hindsight": "demonstration", "demonstration": {"source": "own_success"}}
    taught = small(policy={"type": "pretrained", "model": "m"}, self_distillation=own)
    with pytest.raises(ConfigError, match="own_success is not looked for in stored rollouts"):
        _require_learnable(taught, settings())
    assert sealed_batches(str(served), RUN) == []
    assert due(served).night is not None


def test_a_killed_night_goes_on_to_the_same_ids(served: Path, tmp_path: Path) -> None:
    log(served, *conversations(served, 8, begin_production(served)))
    night = night_of(due(served))
    undisturbed = Path(shutil.copytree(served, tmp_path / "undisturbed"))
    slept(undisturbed, night)
    # Traffic goes on meanwhile; it is for the next night.
    log(served, *conversations(served, 8, night.origin.checkpoint_id or "", first=100))
    with pytest.raises(Interrupted):
        slept(served, night, stop_after="measure_staleness of iteration 1")

    again = night_of(due(served))

    assert (again.config, again.origin, again.rated) == (night.config, night.origin, 8)
    slept(served, again)
    assert judged(served, again).verdict.checkpoint_id == judged(undisturbed, night).verdict.checkpoint_id
    following = night_of(due(served))
    assert (following.name, following.origin.first_iteration) == ("small-night-002", 2)


def test_what_production_has_not_learned_is_trained_again_with_what_is_new(served: Path) -> None:
    policy = begin_production(served)
    log(served, *conversations(served, 8, policy))
    first = night_of(due(served))
    slept(served, first)
    judged(served, first)  # a candidate, which nobody has promoted
    assert due(served, max_age=4).night is None
    log(served, *conversations(served, 9, policy, first=100))

    both = night_of(due(served, max_age=4))
    slept(served, both)

    assert (both.origin.first_iteration, both.origin.last_iteration, both.rated) == (1, 2, 17)
    assert judged(served, both).verdict.passed


def test_with_promote_the_next_night_begins_from_the_new_checkpoint_and_leaves_out_what_is_too_old(
    served: Path,
) -> None:
    begun = begin_production(served)
    policies = [begun]
    for number in range(3):
        log(served, *conversations(served, 16, begun if number == 2 else policies[-1], first=100 * number))
        night = night_of(due(served))
        assert night.origin.checkpoint_id == policies[-1]
        kept = RetentionConfig(checkpoints="1", optimizer="1")
        night = replace(night, config=night.config.model_copy(update={"retention": kept}))
        slept(served, night)
        result = judged(served, night, promotes=True)
        assert result.change is not None
        policies.append(result.verdict.checkpoint_id)

    store = ArtifactStore(str(served))
    manifest = store.open(policies[-1]).manifest
    # With max_age 1, what the first checkpoint said is too old for the one that two nights have made of it.
    assert manifest.counters["dropped_too_old"] == 16
    # Production can go back by one. What was before that is no longer needed, but the run's own.
    removed = [{file.path for file in store.pruned(store.open(each).manifest).files} for each in policies]
    assert removed == [set(), {"model/model.safetensors", "optimizer.safetensors"}, set(), set()]
    assert verify_run(store, RunStore(str(served)).open("small-night-001")).problems == []
