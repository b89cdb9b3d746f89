import pytest

from erl_pipeline.stages.rollouts.counts import count_rollouts, success_rates
from tests.erl_pipeline.episodes.script import play


def test_counts_of_three_episodes() -> None:
    solved = play(["right a", "right a"])[0]
    helped = play(["down b", "? a b ?", "right a", "right a"], sample=1)[0]
    failed = play(["down b", "a b"], sample=2)[0]
    counts = count_rollouts([*solved, *helped, *failed])

    assert counts["episodes"] == 3
    assert (counts["first_attempt_count"], counts["first_attempt_successes"]) == (3, 1)
    assert (counts["second_attempt_count"], counts["second_attempt_successes"]) == (1, 1)
    assert (counts["reflection_count"], counts["ill_formed"]) == (2, 1)
    assert counts["episode_successes"] == 2
    # Turns of 3 tokens (2 + 1 + 2 + 1 of them), reflections of 5 and 3.
    assert counts["generated_tokens"] == 3 * 6 + 5 + 3
    assert success_rates(counts) == pytest.approx(
        {
            "success_first_attempt": 1 / 3,
            "success_reflection": 0.5,
            "success_second_attempt": 1.0,
            "success_episode": 2 / 3,
        }
    )


def test_a_rate_of_nothing_is_left_out() -> None:
    assert success_rates(count_rollouts(play(["right a", "right a"])[0])).keys() == {
        "success_first_attempt",
        "success_episode",
    }
