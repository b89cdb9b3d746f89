from __future__ import annotations

from erl_pipeline.environments.reasoning_gym import ENVIRONMENT
from erl_pipeline.environments.reasoning_gym.settings import ReasoningGymConfig

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
