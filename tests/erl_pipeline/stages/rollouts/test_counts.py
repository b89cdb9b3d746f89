from dataclasses import replace

import pytest

from erl_pipeline.stages.rollouts.counts import count_parts, count_rollouts, part_rates, success_rates
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


def test_what_was_not_scored_is_counted_apart_and_in_no_rate() -> None:
    solved = play(["right a", "right a"])[0]
    helped = play(["down b", "? a b ?", "right a", "right a"], sample=1)[0]
    # Its second attempt would have succeeded; its first attempt failed, which is known.
    unknown = play(["down b", "? a b ?", "right a", "right a"], sample=2)[0]
    unknown[1:] = [replace(row, finish_reason="environment_error") for row in unknown[1:]]
    dead = [replace(play(["down b"], sample=3, max_revisions=0)[0][0], finish_reason="scorer_error")]
    counts = count_rollouts([*solved, *helped, *unknown, *dead])
    assert (counts["first_attempt_count"], counts["first_attempt_not_scored"]) == (4, 1)
    assert (counts["reflection_count"], counts["reflection_not_scored"]) == (2, 1)
    assert (counts["episodes"], counts["episodes_not_scored"], counts["episode_successes"]) == (4, 2, 2)
    assert (counts["environment_errors"], counts["scorer_errors"]) == (1, 1)
    assert "environment_timeouts" not in counts
    assert success_rates(counts) == pytest.approx(
        {
            "success_first_attempt": 1 / 3,
            "success_reflection": 1.0,
            "success_second_attempt": 1.0,
            "success_episode": 1.0,
        }
    )
    parts = count_parts([*solved, *helped, *unknown, *dead])
    assert part_rates(parts) == pytest.approx(
        {"part.corner.success_first": 1 / 3, "part.corner.success_episode": 1.0}
    )


def test_a_rate_of_nothing_is_left_out() -> None:
    assert success_rates(count_rollouts(play(["right a", "right a"])[0])).keys() == {
        "success_first_attempt",
        "success_episode",
    }
