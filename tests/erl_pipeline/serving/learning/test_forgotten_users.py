"""A user is forgotten between nights, and before a batch is trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.serving.learning.forgotten import learned_from_forgotten
from erl_pipeline.serving.learning.promotion import promote, roll_back
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, Interrupted
from storage.lineage.trained_on import RowFilter, TrainedOn
from storage.runs.run import RunStore
from storage.serving.aliases import current_aliases
from storage.serving.forgetting import forget_user
from storage.serving.traffic import Record
from storage.serving.user_traces import find_user
from storage.serving.users import NamedUser
from storage.upkeep.runs import remove_run
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.serving.learning.served_traffic import RUN, conversations, log
from tests.erl_pipeline.serving.learning.small_nights import (
    begin_production,
    due,
    judged,
    night_of,
    settings,
    slept,
)

GONE = NamedUser("acme", ("gone",))


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
    assert result.kept == "it had trained on a batch of which a user was forgotten since"

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
    assert any(learned_from_forgotten(str(served), later.artifact_id, since=policy))


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


@pytest.mark.parametrize("pruned_before", [False, True])
@pytest.mark.parametrize("judged_before", [False, True])
def test_what_learned_from_the_user_is_promoted_only_without_the_gate(
    served: Path, judged_before: bool, pruned_before: bool
) -> None:
    """Whether the user was forgotten before the verdict or after it, and although retention has pruned the
    batch before."""
    first = begin_production(served)
    log(served, *of_users(conversations(served, 16, first)))
    night = night_of(due(served))
    slept(served, night)
    if judged_before:
        judged(served, night)
    if pruned_before:
        (batch,) = RunStore(str(served)).open(f"{RUN}-traffic").stages()[:1]
        store = ArtifactStore(str(served))
        names = [each.path for each in store.open(batch.artifact_id).manifest.files]
        store.prune(batch.artifact_id, names, "retention.trajectories")
    forget_user(str(served), RUN, GONE)
    made = judged(served, night).verdict.checkpoint_id
    remove_run(str(served), night.name)  # Its checkpoint is there all the same.

    with pytest.raises(
        InputError, match=r"\(run small-night-001\) had trained on iteration 1 of small-traffic"
    ):
        promote(str(served), RUN, "production", made, settings().gate, "me")
    with pytest.raises(InputError, match="--without-gate --why TEXT"):
        promote(str(served), RUN, "beta", made, settings().gate, "me")
    assert current_aliases(str(served), RUN)["production"].checkpoint_id == first
    promote(
        str(served), RUN, "production", made, settings().gate, "me", why="the best one", without_gate=True
    )
    assert current_aliases(str(served), RUN)["production"].checkpoint_id == made


def test_a_rollback_goes_to_what_learned_from_the_user_and_can_be_told_so(served: Path) -> None:
    first = begin_production(served)
    log(served, *of_users(conversations(served, 16, first)))
    nights = [night_of(due(served))]
    slept(served, nights[0])
    learned = judged(served, nights[0], promotes=True).verdict.checkpoint_id
    log(served, *conversations(served, 16, learned, first=100))
    nights.append(night_of(due(served)))
    slept(served, nights[1])
    inherited = judged(served, nights[1], promotes=True).verdict.checkpoint_id
    forget_user(str(served), RUN, GONE)

    assert promote(str(served), RUN, "production", inherited, settings().gate, "me").previous == learned
    assert roll_back(str(served), RUN, "production", "me").checkpoint_id == learned
    made = (first, learned, inherited)
    told = [list(learned_from_forgotten(str(served), each)) for each in made]
    assert [[line.split()[0] for line in lines] for lines in told] == [[], [learned[:12]], [learned[:12]]]
    assert not any(learned_from_forgotten(str(served), inherited, since=learned))
