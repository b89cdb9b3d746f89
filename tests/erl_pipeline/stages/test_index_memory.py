from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.stages.index_memory import memory_recipe, new_entries
from tests.erl_pipeline.episodes.script import play

OPENING = "@ # & # $ # # # # # # # # # # # notes ? ? ? ?"


def test_a_reflection_that_led_to_success_becomes_an_entry() -> None:
    rows = play(["down b", "? a b ?", "right a", "right a"])[0]
    [entry] = new_entries(rows, "version-1")

    assert entry.entry_id == f"m-{rows[1].trajectory_id}"
    assert entry.source_trajectory_id == rows[1].trajectory_id
    assert (entry.text, entry.task_text, entry.feedback) == ("? a b ?", OPENING, "fell")
    assert entry.key_text == f"{OPENING}\nfell"
    assert (entry.reward_before, entry.reward_after) == (0.0, 1.0)
    assert entry.environment == rows[1].environment
    assert (entry.iteration, entry.policy_version, entry.memory_version) == (3, "policy-1", "version-1")


def test_a_reflection_that_did_not_help_or_is_ill_formed_is_not_stored() -> None:
    assert list(new_entries(play(["down b", "? a b ?", "down b"])[0], "version-1")) == []
    assert list(new_entries(play(["down b", "a b"])[0], "version-1")) == []


def test_only_settings_that_are_in_force_are_part_of_the_recipe() -> None:
    model = {"embedding_model": "all-MiniLM-L6-v2"}
    assert memory_recipe(MemoryConfig(top_k=3, same_task_type=False, evict="lowest_gain")) == model
    assert memory_recipe(MemoryConfig(merge_similarity=0.9)) == {**model, "merge_similarity": 0.9}
    assert memory_recipe(MemoryConfig(max_entries=5)) == {**model, "max_entries": 5, "evict": "oldest"}
