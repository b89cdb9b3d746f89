"""A user is forgotten between nights, and before a batch is trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.serving.learning.nights import _learned_from_forgotten
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import Interrupted
from storage.lineage.trained_on import RowFilter, TrainedOn
from storage.runs.run import RunStore
from storage.serving.forgetting import forget_user
from storage.serving.traffic import Record
from storage.serving.user_traces import find_user
from storage.serving.users import NamedUser
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.serving.learning.served_traffic import RUN, conversations, log
from tests.erl_pipeline.serving.learning.small_nights import begin_production, due, judged, night_of, slept


def of_users(records: list[Record]) -> list[Record]:
    """Every fourth episode is of user `gone`."""
    return [
        each.model_copy(update={"user": "gone" if int(each.episode_id[1:]) % 4 == 1 else "stays"})
        for each in records
    ]


def problems(store: Path) -> list[str]:
    runs = RunStore(str(store))
    fresh = ArtifactStore(str(store))
    return [each for name in runs.list() for each in verify_run(fresh, runs.open(name)).problems]


def test_nights_before_and_after(served: Path) -> None:
    policy = begin_production(served)
    log(served, *of_users(conversations(served, 16, policy)))
    night = night_of(due(served))
    slept(served, night)
    made = judged(served, night, promotes=True).verdict.checkpoint_id

    found = forget_user(str(served), RUN, NamedUser("acme", ("gone",)))

    assert [(each.manifest.artifact_id, each.how, each.rows) for each in found.learners] == [
        (made, "directly", 4)
    ]
    assert found.branch_points[0].before is not None
    assert found.branch_points[0].before.artifact_id == policy
    assert [change.alias for _, change in found.aliases] == ["production"]
    assert problems(served) == []
    assert not find_user(str(served), RUN, NamedUser("acme", ("gone",))).found
    log(served, *of_users(conversations(served, 16, made, first=100)))
    later = night_of(due(served))
    slept(served, later)
    assert judged(served, later).verdict.checkpoint_id != made
    assert problems(served) == []


def test_no_later_night_learns_from_the_user_and_no_alias_means_what_did(served: Path) -> None:
    """A night had trained, and was not judged yet. Its updates are in the store."""
    user = NamedUser("acme", ("gone",))
    policy = begin_production(served)
    log(served, *of_users(conversations(served, 16, policy)))
    night = night_of(due(served, max_age=4))
    slept(served, night)
    forget_user(str(served), RUN, user)

    result = judged(served, night, promotes=True)
    assert (result.verdict.passed, result.change) == (True, None)
    assert result.kept == "a user was forgotten from whose conversations it had learned before"

    log(served, *conversations(served, 16, policy, first=200))
    later = night_of(due(served, max_age=4))
    assert (later.origin.first_iteration, later.origin.last_iteration) == (2, 2)
    slept(served, later)
    made = judged(served, later).verdict.checkpoint_id
    assert made not in {each.manifest.artifact_id for each in find_user(str(served), RUN, user).learners}


def test_what_was_trained_before_the_night_was_killed_counts_too(served: Path) -> None:
    """An iteration trains twice: the fine-tuning begins after the user was forgotten, from what was updated
    before."""
    policy = begin_production(served)
    log(served, *of_users(conversations(served, 16, policy)))
    night = night_of(due(served))
    store, run = ArtifactStore(str(served)), RunStore(str(served))
    with pytest.raises(Interrupted):
        slept(served, night, stop_after="update_policy of iteration 1")
    forget_user(str(served), RUN, NamedUser("acme", ("gone",)))
    trained = run.open(night.name)
    (update,) = [
        each.artifact_id for each in trained.stages() if each.kind == "checkpoint" and each.iteration
    ]
    later = Recipe("fine_tune", 1, {}, {"checkpoint": update}, 0, kind="checkpoint")
    with store.create(later, run=night.name, iteration=1) as staging:
        staging.commit()
    with trained.lock():
        trained.record(1, "fine_tune", later.artifact_id, kind="checkpoint", reused=False, seconds=0.0)
    assert _learned_from_forgotten(str(served), night)


def test_a_sealed_batch_is_trained_without_the_user(served: Path) -> None:
    policy = begin_production(served)
    log(served, *of_users(conversations(served, 16, policy)))
    night = night_of(due(served))
    forget_user(str(served), RUN, NamedUser("acme", ("gone",)))
    slept(served, night)

    made = judged(served, night).verdict.checkpoint_id
    rows = TrainedOn(ArtifactStore(str(served)), made).rows(RowFilter()).collect()
    assert rows.filter(rows["how"] == "directly").height == 12
    assert find_user(str(served), RUN, NamedUser("acme", ("gone",))).learners == ()
    assert problems(served) == []
