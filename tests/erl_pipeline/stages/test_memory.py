import json
from collections.abc import Sequence
from dataclasses import replace

from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.stages.memory import IndexSettings, example, new_entries
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play

SETTINGS = IndexSettings(
    keep=MemoryConfig(embedding_model="words").keep, text_role="reflection", opening_role="first_attempt"
)
OPENING = "@ # & # $ # # # # # # # # # # # notes ? ? ? ?"


def test_a_reflection_that_led_to_success_becomes_an_entry() -> None:
    rows = play(["down b", "? a b ?", "right a", "right a"])[0]
    [entry] = new_entries(rows, "version-1", SETTINGS)

    assert entry.entry_id == f"m-{rows[1].trajectory_id}"
    assert entry.source_trajectory_id == rows[1].trajectory_id
    assert (entry.text, entry.task_text, entry.feedback) == ("? a b ?", OPENING, "fell")
    assert entry.key_text == f"{OPENING}\nfell"
    assert (entry.kind, entry.operation, entry.support, entry.credit) == ("reflection", "add", 1, 0.0)
    assert entry.environment == rows[1].environment
    assert (entry.iteration, entry.policy_version, entry.memory_version) == (3, "policy-1", "version-1")


def test_with_examples_an_entry_is_both_attempts_and_the_reflection_between_them() -> None:
    rows = play(["down b", "? a b ?", "right a", "right a"])[0]
    keep = MemoryConfig(embedding_model="words", examples=True).keep
    settings = SETTINGS.model_copy(update={"keep": keep})
    [entry] = new_entries(rows, "version-1", settings)

    assert entry.text == (
        "Initial attempt:\ndown b\nReflection:\n? a b ?\nRevised attempt:\nright a\nright a"
    )
    assert entry.key_text == f"{OPENING}\nfell"
    assert "examples" not in SETTINGS.model_dump()["keep"]
    assert settings.model_dump()["keep"]["examples"] is True


def test_tools_that_an_attempt_called_are_in_its_example_and_thoughts_are_not() -> None:
    row = play(["down b", "? a b ?", "right a", "right a"])[0][0]
    called = {"function": {"name": "search", "arguments": {"query": "Bragg"}}}
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "A town."},
        {"role": "assistant", "content": "<think>\nWho?\n</think>\n\nNobody."},
    ]
    attempt = replace(row, messages=json.dumps(messages))
    assert example(attempt, "look", row) == (
        'Initial attempt:\nsearch({"query": "Bragg"})\nNobody.\nReflection:\nlook\nRevised attempt:\ndown b'
    )


def test_a_reflection_that_did_not_help_or_is_ill_formed_is_not_stored() -> None:
    assert list(new_entries(play(["down b", "? a b ?", "down b"])[0], "version-1", SETTINGS)) == []
    assert list(new_entries(play(["down b", "a b"])[0], "version-1", SETTINGS)) == []


def test_a_note_that_failed_its_trial_is_not_stored_and_one_that_the_memory_has_needs_none() -> None:
    rows = play(["down b", "? a b ?", "right a", "right a"])[0]
    key = rows[1].task_type, "? a b ?"
    assert [len(list(new_entries(rows, "version-1", SETTINGS, judged))) for judged in ({key: False}, {})] == [
        0,
        1,
    ]


def test_a_note_that_passed_its_trial_needs_no_success_and_is_stored_once() -> None:
    failed = play(["down b", "? a b ?", "down b"])[0]
    other = [replace(row, trajectory_id=f"{row.trajectory_id}-2", episode_id="e2") for row in failed]
    helped = [replace(row, trajectory_id=f"{row.trajectory_id}-3", success=True) for row in failed[1:2]]
    key = failed[1].task_type, "? a b ?"

    def stored(rows: Sequence[Trajectory], kept: bool) -> list[str | None]:
        return [entry.source_trajectory_id for entry in new_entries(rows, "version-1", SETTINGS, {key: kept})]

    assert stored([*failed, *other], kept=True) == [failed[1].trajectory_id]
    assert stored([*failed, *other], kept=False) == []
    assert stored([*failed, *helped], kept=True) == [helped[0].trajectory_id]
