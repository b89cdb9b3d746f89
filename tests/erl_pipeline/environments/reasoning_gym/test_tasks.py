from __future__ import annotations

import sys
from typing import Any

import pytest

from erl_pipeline.environments.reasoning_gym import ENVIRONMENT, library
from erl_pipeline.environments.reasoning_gym.library import score
from erl_pipeline.environments.reasoning_gym.settings import ReasoningGymConfig
from erl_pipeline.environments.reasoning_gym.tasks import EntryRequest, entries_of, generate
from erl_pipeline.environments.tasks import require_version
from storage.errors import ConfigError

SETTINGS = ReasoningGymConfig.model_validate(
    {
        "tasks": {
            "spell_backward": {"weight": 3, "config": {"max_word_len": 4}},
            "chain_sum": {"weight": 1},
        },
        "training_tasks": 8,
        "test_tasks": 4,
    }
)


def test_no_question_is_in_two_splits_and_every_entry_is_stored_whole() -> None:
    training = ENVIRONMENT.training_tasks(SETTINGS, 0)
    held_out = ENVIRONMENT.held_out_tasks(SETTINGS, 0, 8)
    test = ENVIRONMENT.splits.test_tasks(SETTINGS, 0)
    tasks = [*training, *held_out, *test]
    assert (len(training), len(held_out), len(test)) == (8, 8, 4)
    assert len({ENVIRONMENT.splits.task_key(task.payload) for task in tasks}) == 20
    assert len({task.task_id for task in tasks}) == 20

    # With weights 3 and 1, one in four is a sum, in every part of the list.
    kinds = [task.task_type.removeprefix("reasoning_gym-") for task in training]
    assert [kinds[start : start + 4].count("chain_sum") for start in (0, 4)] == [1, 1]
    word = next(task for task in training if task.task_type == "reasoning_gym-spell_backward")
    assert word.task_id == "spell_backward-training-0-00000"
    assert word.payload["config"] == {"max_word_len": 4}
    entry = word.payload["entry"]
    assert entry["answer"] == entry["metadata"]["word"][::-1]
    assert entry["metadata"]["word"] in entry["question"]


def test_fewer_held_out_tasks_are_the_beginning_of_more_and_the_run_seed_changes_nothing() -> None:
    assert ENVIRONMENT.held_out_tasks(SETTINGS, 1, 3) == ENVIRONMENT.held_out_tasks(SETTINGS, 0, 6)[:3]
    assert ENVIRONMENT.held_out_tasks(SETTINGS, 0, 0) == []
    assert ENVIRONMENT.splits.test_tasks(SETTINGS.model_copy(update={"test_tasks": None}), 0) == []


def test_a_task_is_known_by_its_question_whatever_the_payload() -> None:
    asked = {"dataset": "gcd", "config": {}, "entry": {"question": "Why?"}}
    assert ENVIRONMENT.splits.task_key(asked) == "Why?"
    assert ENVIRONMENT.splits.task_key({**asked, "dataset": "lcm", "config": {"max_value": 2}}) == "Why?"
    assert ENVIRONMENT.splits.task_key({"board": 1}) == ""


def request(name: str, **changes: Any) -> EntryRequest:
    fields: dict[str, Any] = {"config": {}, "seed": 0, "split": "training", "count": 4, "third": False}
    return EntryRequest(name, **{**fields, **changes})


def test_equal_requests_give_equal_entries_under_any_hash_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The letters of a ransom note come from a set: with another hash seed the question differs.
    asked = [request("ransom_note"), request("leg_counting", seed=1)]
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    first = generate(asked)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    assert generate(asked) == first
    assert [len(entries) for entries in first] == [4, 4]
    for entry in first[0]:
        assert score("ransom_note", {}, entry, entry["answer"]).right


def test_other_seeds_and_splits_give_other_questions_and_a_smaller_count_the_beginning() -> None:
    def questions(**changes: object) -> list[str]:
        return [entry["question"] for entry in entries_of(request("leg_counting", count=20, **changes))]

    training = questions()
    assert len(set(training)) == 20
    assert set(training).isdisjoint(questions(split="held_out"))
    assert set(training).isdisjoint(questions(seed=1))
    assert questions()[:5] == [entry["question"] for entry in entries_of(request("leg_counting", count=5))]


def test_a_dataset_with_too_few_questions_says_so() -> None:
    # With one bit to count, 0 and 1 are the only numbers.
    tiny = request("count_bits", config={"min_n": 1, "max_n": 2}, count=50)
    with pytest.raises(ConfigError, match=r"count_bits: 50 training tasks are asked for, but only \d+ with"):
        entries_of(tiny)


def test_settings_that_the_dataset_refuses_are_told() -> None:
    with pytest.raises(ConfigError, match=r"leg_counting\.config: \{'legs': 3\}.*unexpected keyword"):
        generate([request("leg_counting", config={"legs": 3})])


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    require_version.cache_clear()
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match=r"pip install 'erl-pipeline\[reasoning-gym\]'"):
        library.dataset("gcd", {}, size=1, seed=0)


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_version.cache_clear()
    monkeypatch.setattr(library, "VERSION", "0.0.1")
    with pytest.raises(ConfigError, match=r"is installed, but the list of what .* is for 0\.0\.1"):
        library.dataset("gcd", {}, size=1, seed=0)
