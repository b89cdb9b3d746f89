from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.stages.memory import IndexSettings, new_entries
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


def test_a_reflection_that_did_not_help_or_is_ill_formed_is_not_stored() -> None:
    assert list(new_entries(play(["down b", "? a b ?", "down b"])[0], "version-1", SETTINGS)) == []
    assert list(new_entries(play(["down b", "a b"])[0], "version-1", SETTINGS)) == []
