"""The policy reflects on conversations that people did not like, and the memory that serves grows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from erl_pipeline.config import run as configuration
from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptReport, ChatPrompts
from erl_pipeline.policies.embedding import SentenceEmbedder
from erl_pipeline.serving.notes import RunMemorySearch
from erl_pipeline.serving.settings import ServedMemory
from erl_pipeline.stages.names import TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.memory.entries import MemoryEntry
from storage.memory.versions import latest_version
from storage.memory.view import ReflectionMemory
from storage.runs.run import RunStore
from storage.serving.aliases import current_aliases
from storage.serving.forgetting import forget_user
from storage.serving.traffic import Record
from storage.serving.user_traces import find_user
from storage.serving.users import NamedUser, user_task_type
from storage.tables.trajectories import Trajectory, read_trajectories
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import go, ids, small
from tests.erl_pipeline.serving.learning.served_traffic import RUN, conversations, log, rating, sampled_rows
from tests.erl_pipeline.serving.learning.small_nights import begin_production, due, judged, night_of, slept

NOTE = "Be brief, quokka."


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a small run whose method has reflections and a memory."""
    store = tmp_path_factory.mktemp("remembering")
    go(small(name=RUN, iterations=1, distillation=False), store)
    return store


@pytest.fixture
def store(remembering: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(remembering, tmp_path / "remembers"))


@pytest.fixture
def reports(store: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, AttemptReport]]:
    """What reflections are asked about. The tiny policy reads no sentences, so it is asked in its own words,
    and all that it writes counts as the same note."""
    shown: list[tuple[str, AttemptReport]] = []
    words = json.loads(sampled_rows(store)[0].messages)[0]["content"]

    def reflection(_: ChatPrompts, told: str, report: AttemptReport, memory: Sequence[str]) -> list[Message]:
        assert memory == []
        shown.append((told, report))
        return [{"role": "user", "content": words}]

    monkeypatch.setattr(configuration, "require_reflections", lambda config: None)
    monkeypatch.setattr(ChatPrompts, "reflection", reflection)
    monkeypatch.setattr(ChatPrompts, "read_reflection", lambda prompts, text: NOTE)
    return shown


def of_users(store: Path) -> list[Record]:
    """16 rated conversations, of which those with even numbers failed. Every fourth is of user `gone`, who
    liked them all and comments on e1; e0 is nobody's, and all others are of user `stays`."""
    policy = begin_production(store)
    users = {number: "gone" if number % 4 == 1 else "stays" for number in range(1, 16)}
    records = [*conversations(store, 16, policy)]
    records.append(rating("said", None, "e1", metric="comment", value="too long"))
    return [each.model_copy(update={"user": users.get(int(each.episode_id[1:]), "")}) for each in records]


def begun_with(store: Path) -> str:
    """The checkpoint that `production` means."""
    return current_aliases(str(store), RUN)["production"].checkpoint_id


def dreamt(store: Path, reflect: str | bool = True, **changes: Any) -> list[Trajectory]:
    """The reflections of a night, after its verdict."""
    night = night_of(due(store, reflect=reflect))
    slept(store, night)
    judged(store, night, reflect=reflect, **changes)
    (made,) = [id_ for place, id_ in ids(store, night.name).items() if place.stage == "reflect_on_feedback"]
    return read_trajectories([ArtifactStore(str(store)).open(made).path(TRAJECTORIES)])


def memory(store: Path) -> ReflectionMemory:
    return ReflectionMemory(str(store), RUN, ArtifactStore(str(store)), SentenceEmbedder())


def found(store: Path, scope: Literal["user", "run"], user: str) -> list[MemoryEntry]:
    """The notes from nights that a conversation of a user gets."""
    run = RunStore(str(store)).open(RUN)
    search = RunMemorySearch(run, MemoryConfig().retrieval, ServedMemory(scope=scope), memory(store).at)
    _, hits = search("question 1\n", "chat", user)
    return [hit.entry for hit in hits if hit.entry.text == NOTE]


def problems(store: Path) -> list[str]:
    """What is wrong with the runs of a store."""
    artifacts, runs = ArtifactStore(str(store)), RunStore(str(store))
    return [each for name in runs.list() for each in verify_run(artifacts, runs.open(name)).problems]


def test_what_one_user_did_not_like_becomes_a_note_for_that_user_alone(
    store: Path, reports: list[tuple[str, AttemptReport]]
) -> None:
    log(store, *of_users(store))

    rows = dreamt(store)

    # Seven that failed, and the one that somebody spoke about; whose e0 was nobody knows.
    assert len(rows) == 8
    assert {row.role for row in rows} == {"reflection"}
    [(told, report)] = [each for each in reports if each[1].feedback == "too long"]
    assert (told, report.observation, report.reward) == ("question 1", "question 1", 1.0)
    assert report.trace.startswith("assistant: ")
    assert {each.feedback for _, each in reports} == {"too long", "none in words"}
    [gone] = found(store, "user", "gone")
    [stays] = found(store, "user", "stays")
    assert (gone.task_type, gone.support, gone.feedback) == (user_task_type("gone"), 1, "too long")
    # Equal texts are one entry of each user.
    assert (stays.task_type, stays.support) == (user_task_type("stays"), 7)
    assert found(store, "user", "") == found(store, "user", "else") == found(store, "run", "gone") == []
    assert problems(store) == []


def test_with_run_everybody_gets_the_notes(store: Path, reports: list[tuple[str, AttemptReport]]) -> None:
    log(store, *of_users(store))

    rows = dreamt(store, "run")

    # e0 too, though nobody was named.
    assert (len(rows), {row.task_type for row in rows}) == (9, {"chat"})
    assert [each.support for each in found(store, "run", "else")] == [9]


def test_a_night_that_is_judged_again_remembers_nothing_twice(
    store: Path, reports: list[tuple[str, AttemptReport]]
) -> None:
    log(store, *of_users(store))
    night = night_of(due(store, reflect=True))
    slept(store, night)
    judged(store, night, reflect=True)
    version = latest_version(RunStore(str(store)).open(RUN))

    judged(store, night, reflect=True)

    assert latest_version(RunStore(str(store)).open(RUN)) == version


def test_a_conversation_that_two_nights_learn_from_is_remembered_once(
    store: Path, reports: list[tuple[str, AttemptReport]]
) -> None:
    """The first night's checkpoint is not promoted, so that the second night trains on its batch again."""
    log(store, *of_users(store))
    slept(store, first := night_of(due(store, reflect=True)))
    judged(store, first, reflect=True)
    ((id_, support),) = [(each.entry_id, each.support) for each in found(store, "user", "stays")]
    later = conversations(store, 9, begun_with(store), first=100)
    log(store, *(each.model_copy(update={"user": "new"}) for each in later))

    slept(store, both := night_of(due(store, max_age=4, reflect=True)))
    judged(store, both, max_age=4, reflect=True)

    assert (both.origin.first_iteration, both.origin.last_iteration) == (1, 2)
    # Seven of 16 conversations, and five of nine.
    assert [(each.entry_id, each.support) for each in found(store, "user", "stays")] == [(id_, support)]
    assert (support, [each.support for each in found(store, "user", "new")]) == (7, [5])
    assert problems(store) == []


@pytest.mark.parametrize("when", ["before the verdict", "afterwards"])
def test_a_forgotten_user_has_no_note_left(
    store: Path, reports: list[tuple[str, AttemptReport]], when: str
) -> None:
    log(store, *of_users(store))
    night = night_of(due(store, reflect=True))
    slept(store, night)
    if when == "afterwards":
        judged(store, night, reflect=True)

    forget_user(str(store), RUN, NamedUser("acme", ("gone",)))
    judged(store, night, reflect=True)

    assert found(store, "user", "gone") == []
    assert [each.support for each in found(store, "user", "stays")] == [7]
    assert not find_user(str(store), RUN, NamedUser("acme", ("gone",))).found
    assert problems(store) == []


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("rlvr", "method rlvr has no memory of reflections"),
        ("erl", "reads only the words of its environment"),
    ],
)
def test_reflections_need_a_memory_and_a_policy_that_reads_sentences(
    store: Path, served: Path, method: str, why: str
) -> None:
    used = store if method == "erl" else served
    log(used, *conversations(used, 8, begin_production(used)))

    with pytest.raises(ConfigError, match=why):
        due(used, reflect=True)
