"""Which proposal takes the place of the instruction."""

from typing import Any

from erl_pipeline.methods.prompt_evolution.adopt import best_proposal


def trial(text: str, reward: float | None, without: float | None, *, kept: bool) -> dict[str, Any]:
    return {"text": text, "reward": reward, "reward_without": without, "kept": kept}


def test_the_highest_mean_reward_of_those_that_beat_the_instruction_wins() -> None:
    trials = [
        trial("not better", 0.5, 0.5, kept=False),
        trial("better", 0.625, 0.5, kept=True),
        trial("best", 0.75, 0.5, kept=True),
        trial("as good, but later", 0.75, 0.5, kept=True),
        trial("not tried", None, None, kept=False),
    ]
    best = best_proposal(trials)
    assert best is not None
    assert best["text"] == "best"


def test_where_attempts_were_not_scored_the_gain_on_the_same_tasks_decides() -> None:
    # The second had only the easy tasks: .9 there is less gain than .6 on all.
    trials = [trial("gains .3", 0.6, 0.3, kept=True), trial("gains .1", 0.9, 0.8, kept=True)]
    best = best_proposal(trials)
    assert best is not None
    assert best["text"] == "gains .3"


def test_nothing_is_adopted_where_nothing_is_better() -> None:
    assert best_proposal([trial("worse", 0.25, 0.5, kept=False)]) is None
    assert best_proposal([]) is None
