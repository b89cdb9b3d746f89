"""Which proposal takes the place of the instruction."""

from typing import Any

from erl_pipeline.methods.prompt_evolution.adopt import best_proposals, instructions_after


def trial(
    text: str, reward: float | None, without: float | None, *, kept: bool, task_type: str = "*"
) -> dict[str, Any]:
    return {
        "task_type": task_type,
        "text": text,
        "reward": reward,
        "reward_without": without,
        "kept": kept,
    }


def best(trials: list[dict[str, Any]]) -> dict[str, str]:
    return {task_type: row["text"] for task_type, row in best_proposals(trials).items()}


def test_the_highest_mean_reward_of_those_that_beat_the_instruction_wins() -> None:
    trials = [
        trial("not better", 0.5, 0.5, kept=False),
        trial("better", 0.625, 0.5, kept=True),
        trial("best", 0.75, 0.5, kept=True),
        trial("as good, but later", 0.75, 0.5, kept=True),
        trial("not tried", None, None, kept=False),
    ]
    assert best(trials) == {"*": "best"}


def test_where_attempts_were_not_scored_the_gain_on_the_same_tasks_decides() -> None:
    # The second had only the easy tasks: .9 there is less gain than .6 on all.
    trials = [trial("gains .3", 0.6, 0.3, kept=True), trial("gains .1", 0.9, 0.8, kept=True)]
    assert best(trials) == {"*": "gains .3"}


def test_nothing_is_adopted_where_nothing_is_better() -> None:
    assert best([trial("worse", 0.25, 0.5, kept=False)]) == {}
    assert best([]) == {}


def test_each_type_of_task_has_its_own_best() -> None:
    trials = [
        trial("gains .1", 0.6, 0.5, kept=True, task_type="ice"),
        trial("gains .3", 0.9, 0.6, kept=True, task_type="lake"),
        trial("gains .2", 0.7, 0.5, kept=True, task_type="ice"),
        trial("worse", 0.25, 0.5, kept=False, task_type="pond"),
    ]
    assert best(trials) == {"ice": "gains .2", "lake": "gains .3"}


def test_an_instruction_for_all_tasks_takes_the_place_of_those_for_types() -> None:
    """As in a branch that goes over to one instruction, and back."""

    def after(before: list[str], types: list[str]) -> set[str]:
        rows = [{**trial("new", 0.6, 0.5, kept=True), "task_type": each} for each in types]
        best = {each["task_type"]: {**each, "source_trajectory_id": "t"} for each in rows}
        found = instructions_after({each: {"text": "old"} for each in before}, best)
        return {f"{task_type} {each['text']}" for task_type, each in found.items()}

    assert after(["ice", "lake"], ["*"]) == {"* new"}
    assert after(["*", "ice"], ["ice"]) == {"* old", "ice new"}
