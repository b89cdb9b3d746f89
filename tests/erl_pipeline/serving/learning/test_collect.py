"""Sealing the settled traffic of a served policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.runs.origins import open_import
from erl_pipeline.serving.learning import collect as collecting
from erl_pipeline.serving.learning import settled
from erl_pipeline.serving.learning.collect import Collected, SealedBatch, collect, sealed_batches
from erl_pipeline.serving.settings import EpisodeSettings
from erl_pipeline.stages.names import TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedRecord
from storage.runs.run import Run, RunStore
from storage.serving.collected import SERVED, SERVED_TRAJECTORIES, traffic_run
from storage.serving.forgetting import forget_user
from storage.serving.traffic import Record, TrafficLog, segments
from storage.serving.users import NamedUser
from storage.tables.parquet import read_rows
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.trajectories import Trajectory, read_trajectories, scan_trajectories
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.serving.learning.served_traffic import (
    RUN,
    TOMORROW,
    at,
    begin_run,
    end,
    log,
    rating,
    turn,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    begin_run(tmp_path)
    return tmp_path


def sealed(store: Path, now: datetime = TOMORROW, **settings: Any) -> Collected:
    return collect(str(store), RUN, EpisodeSettings(settle_hours=24, idle_minutes=30), now, **settings)


def batch_of(found: Collected) -> SealedBatch:
    assert found.batch is not None
    return found.batch


def trajectories(store: Path, batch: SealedBatch) -> list[Trajectory]:
    return read_trajectories([ArtifactStore(str(store)).open(batch.trajectories_id).path(TRAJECTORIES)])


def rated(number: int, reward: float, **changes: Any) -> list[Record]:
    episode = f"e{number}"
    return [
        turn(f"t{number}", episode, arrived=at(number), **changes),
        rating(f"f{number}", reward, episode, received=at(number + 1)),
    ]


def test_users_of_two_servers_under_one_name_have_episodes_of_their_own(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server knows only what was said to it. Also where a log is read in parts."""
    own: list[Record] = [
        turn("a", user="anna"),
        rating("fa", 1.0, user="anna", metric="comment", value="good"),
    ]
    other: list[Record] = [turn("b", user="bob"), rating("fb", 0.0, user="bob"), turn("c", user="anna")]
    log(store, *own, rating("fr", 1.0, user="anna"))
    log(store, *other)
    monkeypatch.setattr(settled, "PART_BYTES", 500)

    batch = batch_of(sealed(store))

    artifact = ArtifactStore(str(store)).open(batch.trajectories_id)
    served = list(read_rows([artifact.path(SERVED)], SERVED_TRAJECTORIES))
    first = {row.trajectory_id for row in trajectories(store, batch)}
    assert sorted(
        (row["user"], sorted(row["feedback_ids"])) for row in served if row["trajectory_id"] in first
    ) == [
        ("anna", ["fa", "fr"]),
        ("bob", ["fb"]),
    ]


def test_an_episode_is_settled_when_a_client_ends_it_or_when_nothing_was_heard_for_long(store: Path) -> None:
    log(store, *rated(0, 1.0), *rated(1, 1.0), end("e1"))
    # The last record of e0 is of second 1.
    settled = at(1) + timedelta(hours=24, minutes=30)

    first = sealed(store, settled - timedelta(seconds=1))
    second = sealed(store, settled)

    assert (first.settled, second.settled) == (1, 1)
    assert (first.unsettled, second.unsettled) == (1, 0)
    assert [row.reward for row in trajectories(store, batch_of(second))] == [1.0]
    assert (batch_of(first).iteration, batch_of(second).iteration) == (1, 2)
    assert sealed(store).batch is None


def test_the_same_log_gives_the_same_artifact_and_another_one_another(tmp_path: Path) -> None:
    ids = []
    for name, reward in (("one", 1.0), ("two", 1.0), ("three", 0.0)):
        begin_run(tmp_path / name)
        # Records of an episode that is not settled, and time, change nothing.
        log(tmp_path / name, *rated(0, reward), turn("x", name, arrived=TOMORROW))
        ids.append(batch_of(sealed(tmp_path / name)).trajectories_id)

    assert ids[0] == ids[1] != ids[2]


def test_a_batch_is_ordinary_rollouts_with_a_table_beside_them(store: Path) -> None:
    log(store, *rated(0, 1.0), turn("b", "e0", arrived=at(2)), turn("c", "e1"))

    batch = batch_of(sealed(store))

    artifact = ArtifactStore(str(store)).open(batch.trajectories_id)
    rows = trajectories(store, batch)
    (further,) = read_trajectories([artifact.path(FURTHER_SEQUENCES)])
    served = list(read_rows([artifact.path(SERVED)], SERVED_TRAJECTORIES))
    assert [row.finish_reason for row in rows] == ["done", "not_rated"]
    assert further.parent_trajectory_id == rows[0].trajectory_id
    assert [each["trajectory_id"] for each in served] == [
        each.trajectory_id for each in (rows[0], further, rows[1])
    ]
    assert [each["call_ids"] for each in served] == [("call-t0",), ("call-b",), ("call-c",)]
    assert batch.counters["rated"] == 1
    run = RunStore(str(store)).open(traffic_run(RUN))
    listing = ArtifactStore(str(store)).open(batch.rollouts_id).manifest
    assert listing.metrics["success_first_attempt"] == 1.0
    assert listing.counters["not_rated"] == 1
    assert verify_run(ArtifactStore(str(store)), run).problems == []


def test_eight_rated_episodes_of_a_type_are_compared_and_fewer_are_not(store: Path) -> None:
    chats = [record for number in range(8) for record in rated(number, number / 7)]
    others = [record for number in range(8, 15) for record in rated(number, 1.0, task_type="other")]
    log(store, *others, *chats, turn("x", "not rated"))

    batch = batch_of(sealed(store))

    rows = trajectories(store, batch)
    groups = Counter(row.group_id for row in rows)
    assert sorted(groups.values()) == [1] * 8 + [8]
    assert (batch.rated, batch.counters["not_grouped"]) == (15, 7)
    chats_alone = [row for row in rows if groups[row.group_id] == 8]
    advantages = group_advantages(chats_alone, [row.group_id for row in chats_alone], "rloo")
    # Rewards are 0, 1/7, ..., 1; the others of a reward r have the sum 4 - r.
    assert advantages == pytest.approx([each / 7 - (4 - each / 7) / 7 for each in range(8)])


def test_what_cannot_be_scored_does_not_count_for_a_group(store: Path) -> None:
    chats = [record for number in range(7) for record in rated(number, 1.0)]
    log(store, *rated(7, 1.0, not_trainable="top_p"), *chats)

    batch = batch_of(sealed(store))

    assert (batch.rated, batch.counters["not_grouped"]) == (7, 7)


def test_several_processes_write_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for name, processes, part_bytes in (("one", 1, settled.PART_BYTES), ("two", 2, 2_000)):
        monkeypatch.setattr(settled, "PART_BYTES", part_bytes)
        begin_run(tmp_path / name)
        chats = [record for number in range(12) for record in rated(number, number / 11)]
        others = [turn(f"x{number}", f"x{number % 5}", arrived=at(number)) for number in range(9)]
        log(tmp_path / name, *chats[::2], *others, *chats[1::2], end("e0"))
        batch = batch_of(sealed(tmp_path / name, processes=processes))
        files.append(ArtifactStore(str(tmp_path / name)).open(batch.trajectories_id).manifest.files)

    assert files[0] == files[1]


def test_too_few_rated_episodes_are_left_for_later(store: Path) -> None:
    log(store, *rated(0, 1.0), turn("b", "e1"))

    found = sealed(store, at_least=2)

    assert (found.batch, found.settled, found.rated) == (None, 2, 1)
    assert sealed(store, at_least=1).settled == 2


def test_records_that_come_after_the_sealing_are_counted(store: Path) -> None:
    """Also one that was received before, but had not reached the log when that was read. An end says
    nothing that a batch could hold."""
    log(store, *rated(0, 1.0), *rated(1, 1.0), rating("other", None, "e1"))
    batch_of(sealed(store))
    assert sealed(store).late == 0
    after = datetime.now(TOMORROW.tzinfo) + timedelta(hours=1)
    log(store, rating("late", 0.0, "e0", received=after), turn("in between", "e1", arrived=at(2)), end("e1"))

    found = sealed(store)

    assert (found.batch, found.late) == (None, 2)


def said(turn_id: str, user: str, seconds: float = 0) -> list[Record]:
    """An episode of a user, and feedback under an id that depends on the episode alone, as that of a client's
    idempotency key may."""
    return [
        turn(turn_id, "thread", user=user, arrived=at(seconds)),
        rating("thumb", 1.0, "thread", user=user, received=at(seconds + 1)),
    ]


def forget(store: Path, user: str) -> None:
    forget_user(str(store), RUN, NamedUser("acme", (user,)))


def sealed_turns(store: Path) -> list[tuple[str, list[str]]]:
    """Id of each sealed episode, and the ids of its turns."""
    artifacts = ArtifactStore(str(store))
    found: list[tuple[str, list[str]]] = []
    for each in sealed_batches(str(store), RUN):
        artifact = artifacts.open(each.trajectories_id)
        served = read_rows([artifact.rows_path(SERVED)], SERVED_TRAJECTORIES)
        rows = scan_trajectories([artifact.rows_path(TRAJECTORIES)]).select("episode_id").collect()
        found += zip(rows["episode_id"], (list(row["turn_ids"]) for row in served), strict=True)
    return found


def test_a_name_that_comes_again_once_its_user_was_forgotten_is_another_episode(store: Path) -> None:
    """Also where the same user comes again, and is forgotten again."""
    for turn_id in ("a", "b", "c"):
        log(store, *said(turn_id, "gone"))
        assert (sealed(store).settled, sealed(store).settled) == (1, 0)
        forget(store, "gone")
    log(store, *said("d", "stays"))

    found, again = sealed(store), sealed(store)

    assert (found.settled, found.rated, found.late) == (1, 1, 0)
    assert (again.settled, again.unsettled, again.late) == (0, 0, 0)
    ids, turns = zip(*sealed_turns(store), strict=True)
    assert turns == (["a"], ["b"], ["c"], ["d"])
    assert len(set(ids)) == 4


def test_what_is_sealed_is_not_sealed_again_when_the_user_before_it_is_forgotten(store: Path) -> None:
    """The first user's episode of that name may still go on, so only the other one's is sealed. Once the
    first is forgotten, the other one's is the only one of that name."""
    log(store, turn("a", "thread", user="gone", arrived=TOMORROW), *said("b", "stays"))
    assert (sealed(store).settled, sealed(store).settled) == (1, 0)
    forget(store, "gone")
    log(store, turn("late", "thread", user="stays", arrived=at(9)))

    found = sealed(store, TOMORROW + timedelta(days=2))

    assert (found.settled, found.late) == (0, 1)
    assert [turns for _, turns in sealed_turns(store)] == [["b"]]


def test_feedback_on_an_episode_whose_turns_are_gone_is_late(store: Path) -> None:
    log(store, *said("a", "gone"))
    batch_of(sealed(store))
    forget(store, "gone")
    log(store, rating("later", 0.0, "thread", user="gone"))

    assert (sealed(store).settled, sealed(store).late) == (0, 1)


def test_segments_that_vanish_at_the_start_are_passed_over(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has logged nothing ends, and a user is forgotten, just before the run is locked; another
    such server ends just after that."""
    log(store, *said("a", "gone"))
    log(store, *rated(0, 1.0))
    servers = [TrafficLog(str(store), RUN) for _ in range(2)]

    def slowly(*given: Any) -> Run:
        servers[0].close()
        forget(store, "gone")
        return open_import(*given)

    def listed_before(*given: Any) -> list[Path]:
        found = segments(*given)
        if not servers[0].path.exists():
            servers[1].close()
        return found

    monkeypatch.setattr(collecting, "open_import", slowly)
    monkeypatch.setattr(collecting, "segments", listed_before)

    assert sealed(store).settled == 1
    assert [each.path.exists() for each in servers] == [False, False]


def test_a_log_that_vanishes_at_the_start_is_an_empty_one(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = TrafficLog(str(store), RUN)

    def slowly(*given: Any) -> Run:
        server.close()
        return open_import(*given)

    monkeypatch.setattr(collecting, "open_import", slowly)

    assert sealed(store) == Collected(None, 0, 0, 0, 0, 0)


def test_a_record_that_a_kill_cut_short_is_counted(store: Path) -> None:
    path = log(store, *rated(0, 1.0), end("e0"))
    path.write_bytes(path.read_bytes()[:-9])

    found = sealed(store)

    assert (found.torn, found.settled) == (1, 1)


def test_a_changed_record_is_refused_by_its_place(store: Path) -> None:
    path = log(store, *rated(0, 1.0))
    path.write_bytes(path.read_bytes().replace(b"asks t0", b"asks t1"))

    with pytest.raises(DamagedRecord, match="at byte 0"):
        sealed(store)


def test_after_a_kill_between_the_two_artifacts_the_batch_has_the_same_ids(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(store, *rated(0, 1.0))

    def killed(_: object) -> dict[str, float]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("erl_pipeline.runs.origins.graded_rewards", killed)
        with pytest.raises(KeyboardInterrupt):
            sealed(store)
    (left,) = ArtifactStore(str(store)).ids("collect_traffic")

    batch = batch_of(sealed(store))

    assert (batch.iteration, batch.trajectories_id) == (1, left)
    assert ArtifactStore(str(store)).ids("collect_traffic") == [left]


def test_a_conversation_that_asks_a_held_out_question_is_not_trained_on(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held_out(_: str, said: Sequence[Mapping[str, str]]) -> str | None:
        return "the held-out task 7" if said[0]["content"] == "asks t0" else None

    monkeypatch.setattr(collecting, "held_out", held_out)
    log(store, *rated(0, 1.0), *rated(1, 1.0))

    rows = trajectories(store, batch_of(sealed(store)))

    assert [row.finish_reason for row in rows] == ["not_trainable", "done"]
