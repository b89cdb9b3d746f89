"""The prompts of the extractor about episodes, and what is made from its answers."""

from __future__ import annotations

import json

from erl_pipeline.config.experience import ExperienceTemplates
from erl_pipeline.environments.frozen_lake.tiny import CompactExtraction
from erl_pipeline.environments.prompt_format import ExperienceOperation
from erl_pipeline.stages.extractor.extract import call_row, read_answer, requests_of
from erl_pipeline.stages.extractor.memory import replaced_entries, written_entries
from erl_pipeline.stages.extractor.prompts import ExperiencePrompts
from storage.tables.trajectories import Trajectory
from storage.texts import StorableTexts
from tests.erl_pipeline.stages.extractor.rows import attempt

PROMPTS = CompactExtraction(("a", "b", "c", "d"), max_steps=2)
TEXTS = {"m-1": "? a ? ?"}


def messages(notes: str) -> str:
    said = [
        ("user", f"@ & notes {notes}"),
        ("assistant", "right a"),
        ("user", "right c1"),
        ("assistant", "up d"),
    ]
    return json.dumps([{"role": role, "content": text} for role, text in said])


def guided(number: int = 1) -> Trajectory:
    return attempt(number, messages=messages("? a ? ?"), subgroup="guided", memory_entry_ids=("m-1",))


def test_every_episode_is_read_whether_it_succeeded_or_not() -> None:
    rows = [
        guided(),
        attempt(2, messages=messages("? ? ? ?"), success=True, reward=1.0, feedback="goal"),
        attempt(3, messages="[]", finish_reason="environment_error"),
        attempt(4, role="extraction"),
    ]
    one, two = requests_of(rows, TEXTS, "artifact")
    assert (one.episode.trajectory_id, one.lessons, one.record.lessons) == ("a1", ("m-1",), ["? a ? ?"])
    assert (two.lessons, two.record.feedback, two.record.reward) == ((), "goal", 1.0)
    assert one.request_id != two.request_id
    (asked,) = PROMPTS.extraction(one.record)
    assert asked["content"] == "@ & trace right a right c1 up d . . lost memory ? a ? ? extract"


def test_an_answer_with_too_many_operations_is_ill_formed() -> None:
    (request,) = requests_of([guided()], TEXTS, "artifact")
    assert read_answer("return", request, PROMPTS, 1, StorableTexts()) == [ExperienceOperation("return")]
    assert read_answer("return", request, PROMPTS, 0, StorableTexts()) is None
    assert read_answer("nonsense", request, PROMPTS, 1, StorableTexts()) is None


def test_an_update_is_a_new_entry_in_the_place_of_its_parents() -> None:
    requests = list(requests_of([guided(1), guided(2), guided(3)], TEXTS, "artifact"))
    answers = [
        [ExperienceOperation("update", "? a b ?", (0,)), ExperienceOperation("add", "c ? ? ?")],
        [ExperienceOperation("return")],
        None,
    ]
    rows = [
        call_row(request, answer, "extractor-1", PROMPTS)
        for request, answer in zip(requests, answers, strict=True)
    ]
    assert [row["parse_ok"] for row in rows] == [True, True, False]
    assert [row["operations"] for row in rows] == [["update", "add"], ["return"], []]
    update, add = written_entries(rows, "text", 4, "version")
    first = requests[0].request_id
    assert (update.text, update.operation, update.parent_entry_ids) == ("? a b ?", "update", ("m-1",))
    assert (add.text, add.operation, add.parent_entry_ids) == ("c ? ? ?", "add", ())
    assert (update.entry_id, add.entry_id) == (f"m-{first}", f"m-{first}-1")
    assert {update.source_trajectory_id, add.source_trajectory_id} == {first}
    assert replaced_entries(rows) == {"m-1": "by an update"}


def test_an_entry_is_found_by_its_text_or_by_its_situation() -> None:
    (request,) = requests_of([guided()], TEXTS, "artifact")
    row = call_row(request, [ExperienceOperation("add", "c ? ? ?")], "extractor-1", PROMPTS)
    (by_text,), (by_situation,) = (written_entries([row], key, 1, "version") for key in ("text", "situation"))
    assert (by_text.key_text, by_situation.key_text) == ("c ? ? ?", "@ & notes ? ? ? ?")
    assert by_text.task_text == "@ & notes ? ? ? ?"


def test_half_of_a_character_in_an_operation_is_replaced_and_counted() -> None:
    (request,) = requests_of([guided()], TEXTS, "artifact")
    texts = StorableTexts()
    answer = r'<answer>{"operation": "add", "text": "Pull \ud83d first."}</answer>'
    chat = ExperiencePrompts(ExperienceTemplates(), 3)
    assert read_answer(answer, request, chat, 3, texts) == [ExperienceOperation("add", "Pull \ufffd first.")]
    assert texts.replaced == 1
