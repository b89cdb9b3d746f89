"""What a store holds of a user, and what is left after it was deleted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts.layout import StagingFolder
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, RunBusy
from storage.memory.view import ReflectionMemory
from storage.runs.run import RunStore
from storage.serving import forgetting
from storage.serving.forgetting import forget_user
from storage.serving.traffic import EpisodeEnd, ReadTraffic, Record, TrafficLog, read_traffic, segments
from storage.serving.user_traces import REASON, UserTraces, find_user, tenants
from storage.serving.users import LOCAL_TENANT, NamedUser, named_user
from storage.tables.teacher_scores import read_teacher_scores
from storage.tables.training import TRAINING_RECORD_FILE, read_sft_rows, write_training_record
from storage.tables.trajectories import read_trajectories
from storage.upkeep.collection import plan_collection
from storage.upkeep.retention import retain
from storage.upkeep.rules import parse_rule
from storage.upkeep.runs import remove_run
from storage.upkeep.verification import verify_run
from tests.embedders import WordEmbedder
from tests.storage.serving.traffic_of_users import (
    NOON,
    RUN,
    TENANT,
    Served,
    conversation,
    files_that_say,
    trained,
    turn,
    user_digest,
    write_served,
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return write_served(tmp_path_factory.mktemp("served") / "store")


@pytest.fixture
def served(written: Served, tmp_path: Path) -> Served:
    shutil.copytree(written.store.uri, tmp_path / "store")
    return Served(ArtifactStore(str(tmp_path / "store")), written.digests, written.ids)


def find(served: Served, user: str = "alice") -> UserTraces:
    return find_user(served.store.uri, RUN, NamedUser(TENANT, (served.digests[user],)))


def delete(served: Served, user: str = "alice") -> UserTraces:
    return forget_user(served.store.uri, RUN, NamedUser(TENANT, (served.digests[user],)))


def problems(uri: str) -> list[str]:
    store, runs = ArtifactStore(uri), RunStore(uri)
    return [each for name in runs.list() for each in verify_run(store, runs.open(name)).problems]


def counts(traces: UserTraces) -> dict[str, tuple[int, int]]:
    """Table -> rows of the user, and how many of them say something."""
    return {
        each.table: (len(each.ids), each.speaking) for each in traces.files if each.table != "trajectories"
    }


def test_all_that_there_is_of_a_user_is_found(served: Served) -> None:
    found = find(served)

    assert [(each.turns, each.feedback, each.being_written) for each in found.segments] == [
        (2, 1, False),
        (1, 1, False),
    ]
    rows = {each.manifest.artifact_id: each.ids for each in found.files if each.table == "trajectories"}
    assert rows == {served.ids["batch"]: {"chat-alice"}, served.ids["thinking"]: {"thought-alice"}}
    assert counts(found) == {
        "served trajectories": (1, 1),
        "served corrections": (1, 1),
        "memory": (2, 2),
        "sft": (1, 1),
        "teacher scores": (2, 2),
    }
    assert found.held == {RUN: ("m-000", "m-001")}
    assert (found.shown_to_others, found.derived_entries, found.set_aside) == (0, (), 0)


def test_checkpoints_that_learned_are_named_with_the_last_one_from_before(served: Served) -> None:
    found = find(served)
    learned = [(each.manifest.artifact_id, each.how, each.rows) for each in found.learners]
    [point] = found.branch_points

    assert learned == [
        (served.ids["update_1"], "directly", 1),
        (served.ids["update_2"], "by inheritance", 0),
    ]
    assert point.before is not None
    assert point.before.artifact_id == served.ids["first"]
    assert [each.artifact_id for each in point.first] == [served.ids["update_1"]]
    assert (point.updates, point.trained_tokens, point.generated_tokens) == (2, 150, 0)
    assert [(run, change.alias) for run, change in found.aliases] == [(RUN, "production")]
    assert {each.how for each in find(served, "bob").learners} == {"directly"}


def test_a_checkpoint_that_a_teacher_taught_by_what_the_user_said_is_named(served: Served) -> None:
    run = RunStore(served.store.uri).open(RUN)
    carl = conversation("bob", "chat", policy_version=served.ids["first"])
    made = {}
    # The first is taught by the scores of carl's attempt; the second is only trained on it.
    for number, inputs in enumerate([{"teacher": served.ids["scores"]}, {"batch": served.ids["batch"]}]):
        recipe = Recipe("update_3", 1, {"number": number}, inputs, 0, kind="checkpoint")
        with served.store.create(recipe, run=RUN, iteration=3) as staging:
            rows = trained([replace(carl, trajectory_id="chat-carl")])
            write_training_record(staging.path / TRAINING_RECORD_FILE, rows)
            staging.commit()
        run.record(3, recipe.stage, recipe.artifact_id, kind=recipe.kind, reused=False, seconds=1.0)
        made[number] = recipe.artifact_id

    found = {each.manifest.artifact_id: (each.how, each.rows) for each in find(served).learners}

    assert found[made[0]] == ("directly", 1)
    assert made[1] not in found


def test_no_file_of_the_store_says_what_a_deleted_user_said(served: Served) -> None:
    store = Path(served.store.uri)
    others = files_that_say(store, "bob")
    assert len(files_that_say(store, "alice")) >= len(others) >= 8

    delete(served)

    assert files_that_say(store, "alice") == []
    assert problems(served.store.uri) == []
    assert plan_collection(str(store), timedelta(0)).leftovers == ()
    found = find(served)
    assert (found.found, found.segments, found.held) == (False, (), {})
    assert counts(found) == {
        "served trajectories": (1, 0),
        "served corrections": (1, 0),
        "memory": (2, 0),
        "sft": (1, 0),
        "teacher scores": (2, 0),
    }
    assert len(found.learners) == 2


def test_what_others_said_stays_as_it_was(served: Served) -> None:
    delete(served)

    read = list(read_traffic(segments(served.store.uri, RUN), ReadTraffic()))
    assert {getattr(each, "user", served.digests["bob"]) for each in read} == {served.digests["bob"]}
    assert len(read) == 3 + 2 + 2
    batch = ArtifactStore(served.store.uri).open(served.ids["batch"])
    assert [each.trajectory_id for each in read_trajectories([batch.path("trajectories.parquet")])] == [
        "chat-bob"
    ]
    dataset = ArtifactStore(served.store.uri).open(served.ids["dataset"])
    assert [each.sft_row_id for each in read_sft_rows([dataset.path("sft.parquet")])] == ["s-bob"]
    run = RunStore(served.store.uri).open(RUN)
    memory = ReflectionMemory(served.store.uri, RUN, ArtifactStore(served.store.uri), WordEmbedder())
    newest = [each.artifact_id for each in run.stages() if each.kind == "memory"][-1]
    assert memory.at(newest).entries()["text"].to_list() == ["numbats are liked"]
    assert problems(served.store.uri) == []


def test_scores_of_a_teacher_that_are_left_teach_and_the_others_do_not(served: Served) -> None:
    delete(served)

    scores = ArtifactStore(served.store.uri).open(served.ids["scores"]).path("teacher_scores.parquet")
    assert [
        (each.trajectory_id, each.logprobs.size, each.support_ids.size, each.not_scored)
        for each in read_teacher_scores(scores)
    ] == [("chat-alice", 0, 0, REASON), ("chat-bob", 1, 2, ""), ("chat-carl", 0, 0, REASON)]


def test_a_second_user_of_the_same_files_goes_too(served: Served) -> None:
    delete(served)
    delete(served, "bob")

    store = Path(served.store.uri)
    assert files_that_say(store, "alice") + files_that_say(store, "bob") == []
    assert segments(served.store.uri, RUN) == []
    assert problems(served.store.uri) == []


def test_rows_that_retention_has_pruned_are_redacted_too(served: Served) -> None:
    RunStore(served.store.uri).open(RUN).record(
        2, "thinking", served.ids["thinking"], kind="trajectories", key="1", reused=True, seconds=0.0
    )
    retain(served.store.uri, {"trajectories": parse_rule("1")})
    store = Path(served.store.uri)
    delete(served)

    assert files_that_say(store, "alice") == []
    assert problems(served.store.uri) == []


def test_what_killed_processes_left_goes_too(served: Served) -> None:
    store = Path(served.store.uri)
    rows = served.store.open(served.ids["batch"]).path("trajectories.parquet")
    for folder in ("staging/0123456789abcdef", "trash/0123456789abcdef-01234567"):
        (store / folder).mkdir(parents=True)
        shutil.copy(rows, store / folder)
    with StagingFolder(store / "staging") as living:
        shutil.copy(rows, living.path)

        assert find(served).left_behind == 2
        delete(served)

        assert files_that_say(store, "alice") == [f"staging/{living.path.name}/trajectories.parquet"]
    assert files_that_say(store, "alice") == []
    assert find(served).left_behind == 0


def test_tables_of_removed_runs_go_too(served: Served) -> None:
    store, runs, version = Path(served.store.uri), RunStore(served.store.uri), served.ids["index_memory"]
    for name in ("branch", "killed"):
        run = runs.create(name, {"seed": 1})
        with run.lock():
            run.record(1, "index_memory", version, kind="memory", reused=True, seconds=0.0)
        ReflectionMemory(served.store.uri, name, served.store, WordEmbedder()).at(version)
        remove_run(served.store.uri, name)
    # As a killed removal leaves it.
    (store / "memory/killed").rename(store / "memory/.killed.0123456789abcdef")

    delete(served)

    assert files_that_say(store, "alice") == []
    assert [path.name for path in (store / "memory").iterdir() if path.is_dir()] == []


def test_a_segment_that_a_server_writes_is_left_alone(served: Served) -> None:
    log = TrafficLog(served.store.uri, RUN)
    end = EpisodeEnd(episode_id="episode-alice", tenant="acme", received=NOON)
    log.append([turn("bob", served.digests["bob"], 9), end])
    log.sync()
    delete(served)
    log.append([turn("alice", served.digests["alice"], 9)])
    log.sync()
    before = log.path.read_bytes()

    with pytest.raises(RunBusy, match="a server is writing to"):
        delete(served)
    assert log.path.read_bytes() == before

    log.close()
    delete(served)
    assert len(list(read_traffic([log.path], ReadTraffic()))) == 1
    assert files_that_say(Path(served.store.uri), "alice") == []


def test_a_server_that_starts_meanwhile_keeps_the_user_from_being_told_forgotten(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It logs a turn of the user after the user's records were looked for."""
    log = TrafficLog(served.store.uri, RUN)

    def finds(*given: Any) -> UserTraces:
        found = find_user(*given)
        log.append([turn("alice", served.digests["alice"], 9)])
        log.sync()
        return replace(found, segments=tuple(replace(each, being_written=False) for each in found.segments))

    monkeypatch.setattr(forgetting, "find_user", finds)
    with pytest.raises(RunBusy, match="a server is writing to"):
        delete(served)
    log.close()
    monkeypatch.undo()
    delete(served)
    assert files_that_say(Path(served.store.uri), "alice") == []


def test_a_record_that_a_kill_cut_short_goes_too(served: Served) -> None:
    last = segments(served.store.uri, RUN)[-1]
    line = last.read_bytes().splitlines(keepends=True)[0]
    last.write_bytes(last.read_bytes() + line[:-20])
    delete(served)

    assert files_that_say(Path(served.store.uri), "alice") == []


def test_nothing_goes_while_a_run_is_worked_on(served: Served) -> None:
    said = files_that_say(Path(served.store.uri), "alice")
    with RunStore(served.store.uri).open(RUN).lock(), pytest.raises(RunBusy):
        delete(served)
    assert files_that_say(Path(served.store.uri), "alice") == said


def test_a_user_without_a_digest_is_refused(served: Served) -> None:
    with pytest.raises(InputError, match="name the user"):
        find_user(served.store.uri, RUN, named_user(served.store.uri, RUN, TENANT, ""))


def test_users_of_two_tenants_with_one_name_are_two(tmp_path: Path) -> None:
    uri = str(tmp_path)
    RunStore(uri).create(RUN, {"seed": 0})
    shared = user_digest(uri, RUN, LOCAL_TENANT, "anna")
    records: list[Record] = []
    for number, (tenant, digest) in enumerate(
        [
            ("acme", user_digest(uri, RUN, "acme", "anna")),
            ("beta", user_digest(uri, RUN, "beta", "anna")),
            # As earlier versions wrote them.
            ("acme", shared),
            ("beta", shared),
        ]
    ):
        said = turn("alice", digest, number)
        records.append(said.model_copy(update={"tenant": tenant, "episode_id": f"e{number}"}))
    log = TrafficLog(uri, RUN)
    log.append(records)
    log.close()

    forget_user(uri, RUN, named_user(uri, RUN, "beta", "anna"))

    assert tenants(uri, RUN) == {"acme"}
    assert len(list(read_traffic(segments(uri, RUN), ReadTraffic()))) == 2


def test_tenants_are_those_of_one_run(served: Served) -> None:
    assert tenants(served.store.uri, RUN) == {TENANT}
    assert tenants(served.store.uri, "another") == set()


KILLED = """
import os, sys
from storage.serving.forgetting import forget_user
from storage.serving.users import NamedUser
count, last = 0, int(sys.argv[3])
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def hook(event, arguments):
    global count
    if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link") or (
        event == "open" and isinstance(arguments[0], (str, bytes)) and arguments[2] & writing
    ):
        count += 1
        if count == last:
            os._exit(9)
sys.addaudithook(hook)
forget_user(sys.argv[1], "served", NamedUser("acme", (sys.argv[2],)))
print(count)
"""


def killed_at(uri: str, user: str, change: int) -> int | None:
    """Delete a user in another process that dies before this change of a file; the number of changes where it
    came to its end."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, uri, user, str(change)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 9), done.stderr
    return int(done.stdout) if done.returncode == 0 else None


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95])
def test_a_killed_deletion_leaves_whole_files_and_goes_on(
    written: Served, served: Served, changes: int, part: float
) -> None:
    uri = served.store.uri
    assert killed_at(uri, served.digests["alice"], int(part * changes)) is None

    list(read_traffic(segments(uri, RUN), ReadTraffic()))
    # A request to forget a note is an artifact before it is a line of the ledger; the next deletion ends it.
    assert all("to forget an entry of the memory is in the store and not" in each for each in problems(uri))
    delete(served)
    assert files_that_say(Path(uri), "alice") == []
    assert problems(uri) == []


@pytest.fixture(scope="module")
def changes(written: Served, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many changes of files a whole deletion makes."""
    copy = tmp_path_factory.mktemp("counted") / "store"
    shutil.copytree(written.store.uri, copy)
    count = killed_at(str(copy), written.digests["alice"], 0)
    assert count is not None
    return count
