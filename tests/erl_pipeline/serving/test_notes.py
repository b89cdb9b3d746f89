"""Notes of a memory in the prompts of served conversations."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.environments.prompt_format import ChatPrompts
from erl_pipeline.serving.notes import NoteSearch, RunMemorySearch, SearchMemory
from erl_pipeline.serving.settings import ServedMemory
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.memory.index import MemoryIndex, index_folder
from storage.memory.standalone import Lesson, StandaloneMemory
from storage.memory.view import MemoryHit
from storage.runs.run import RunStore
from storage.serving.traffic import ServedTurn
from storage.serving.users import digest_of
from tests.embedders import WordEmbedder
from tests.erl_pipeline.serving.served import Scripted, Served
from tests.erl_pipeline.serving.test_answering import text_of

ANNA, BERT = digest_of(b"k" * 32, "a", "anna"), digest_of(b"k" * 32, "a", "bert")
LESSONS = [
    Lesson("Bake at 180.", "the bread is black"),
    Lesson("Anna has a gas oven.", "the bread is black", task_type=f"user:{ANNA}"),
    Lesson("Bert is away on Monday.", "the bread is black", task_type=f"user:{BERT}"),
]


def memory_search(folder: Path, scope: Literal["run", "user"]) -> RunMemorySearch:
    memory = StandaloneMemory(str(folder), "kitchen", WordEmbedder())
    memory.add(LESSONS)
    run = RunStore(str(folder)).open("kitchen")
    return RunMemorySearch(run, MemoryConfig().retrieval, ServedMemory(scope=scope), memory.at)


def notes(search: SearchMemory, told: list[str] | None = None, seconds: float = 60.0) -> NoteSearch:
    prompts = ChatPrompts(PromptTemplates())
    return NoteSearch(search, prompts, (told if told is not None else []).append, seconds)


def served_turns(scripted: Scripted, *users: str, key: str = "key-a") -> list[ServedTurn]:
    """What is logged where each of these users, empty for nobody, asks once and goes on once."""
    found: list[ServedTurn] = []

    async def use(served: Served) -> None:
        for user in users:
            named: Any = {"metadata": {"user": user}} if user else {}
            answer, _ = await served.chat("the bread is black", key=key, **named)
            await served.chat("the bread is black", answer, "why?", key=key, **named)
        found.extend(record for record in await served.logged() if isinstance(record, ServedTurn))

    scripted.use(use)
    return found


def test_notes_of_the_run_are_in_the_system_message_and_those_of_users_are_not(tmp_path: Path) -> None:
    search = memory_search(tmp_path / "memory", "run")
    first, second = served_turns(Scripted(tmp_path, notes=notes(search)), "anna")

    prompt = text_of(first.context_token_ids)
    assert first.notes == "Notes from earlier attempts (they may be wrong):\n- Bake at 180."
    assert prompt.startswith(f"<|im_start|>system\n{first.notes}<|im_end|>\n<|im_start|>user\nthe bread")
    assert first.messages == ({"role": "user", "content": "the bread is black"},)
    assert first.memory_entry_ids == (LESSONS[0].entry_id,)
    assert first.memory_version
    # The turn goes on behind the same tokens, so behind the same notes.
    assert second.after == first.turn_id
    assert (second.notes, second.memory_version) == (first.notes, first.memory_version)


def test_no_prompt_of_one_user_has_what_is_known_of_another(tmp_path: Path) -> None:
    search = memory_search(tmp_path / "memory", "user")
    turns = served_turns(Scripted(tmp_path, notes=notes(search)), "anna", "bert", "carl", "")

    shown = [text_of(turn.context_token_ids) for turn in turns if turn.after is None]
    assert [["gas oven" in text, "Monday" in text, "180" in text] for text in shown] == [
        [True, False, False],
        [False, True, False],
        [False, False, False],
        [False, False, False],
    ]


def test_no_prompt_has_what_is_known_of_another_tenants_user_of_the_same_name(tmp_path: Path) -> None:
    search = memory_search(tmp_path / "memory", "user")
    first, _ = served_turns(Scripted(tmp_path, notes=notes(search)), "anna", key="key-b")

    assert (first.tenant, first.notes) == ("b", "")


def test_notes_follow_the_system_message_of_the_client(tmp_path: Path) -> None:
    async def use(served: Served) -> None:
        asked = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "black bread"}]
        assert (await served.post("/v1/chat/completions", {"messages": asked}))[0] == 200
        (turn,) = await served.logged()
        assert isinstance(turn, ServedTurn)
        assert turn.notes == "\n\nNotes from earlier attempts (they may be wrong):\n- Bake at 180."
        assert f"system\nBe brief.{turn.notes}<|im_end|>" in text_of(turn.context_token_ids)

    Scripted(tmp_path, notes=notes(memory_search(tmp_path / "memory", "run"))).use(use)


def test_notes_are_found_again_after_another_process_has_removed_the_table(tmp_path: Path) -> None:
    """As `forget-user` does. The newest version was looked up less than half a minute ago."""
    search = memory_search(tmp_path, "run")
    before = search("the bread is black", "", "")
    assert [hit.entry.text for hit in before[1]] == ["Bake at 180."]

    MemoryIndex(index_folder(str(tmp_path), "kitchen"), ArtifactStore(str(tmp_path))).discard()

    assert search("the bread is black", "", "") == before


def test_a_search_that_is_slow_or_fails_leaves_calls_without_notes(tmp_path: Path) -> None:
    told: list[str] = []
    answered = threading.Event()

    def slow(situation: str, task_type: str, user: str) -> tuple[str, Sequence[MemoryHit]]:
        answered.wait(60.0)
        raise StoreError("the table is gone")

    async def use(served: Served) -> None:
        await served.chat("hi")
        await served.chat("hi")
        assert (await served.health())["answered_without_notes"] == 2
        answered.set()
        while not told:
            await served.chat("hi")
        first, *_ = await served.logged()
        assert isinstance(first, ServedTurn)
        assert (first.notes, first.memory_version) == ("", "")

    found = notes(slow, told, seconds=0.05)
    Scripted(tmp_path, notes=found).use(use)
    assert told == ["The memory cannot be searched, and calls are answered without notes: the table is gone"]
