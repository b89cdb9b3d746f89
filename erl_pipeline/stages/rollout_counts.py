"""Counting what a set of trajectories holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.tables.trajectories import Trajectory


def count_rollouts(rows: Sequence[Trajectory]) -> dict[str, int]:
    """Episodes, attempts and successes by role, and tokens.

    `generated_tokens` counts tokens the policy sampled; `prompt_tokens` counts each prompt once, and
    what the environment said between turns.
    """
    firsts = [row for row in rows if row.role == "first_attempt"]
    seconds = [row for row in rows if row.role == "second_attempt"]
    reflections = [row for row in rows if row.role == "reflection"]
    generated = sum(sum(row.response_mask) for row in rows)
    return {
        "trajectories": len(rows),
        "episodes": len(firsts),
        "first_attempts": len(firsts),
        "first_attempt_successes": sum(row.success for row in firsts),
        "second_attempts": len(seconds),
        "second_attempt_successes": sum(row.success for row in seconds),
        "episode_successes": len({row.episode_id for row in [*firsts, *seconds] if row.success}),
        "reflections": len(reflections),
        "reflections_ill_formed": sum(row.finish_reason == "ill_formed" for row in reflections),
        "truncated": sum(row.truncated for row in rows),
        "generated_tokens": generated,
        "prompt_tokens": sum(len(row.prompt_token_ids) + len(row.response_token_ids) for row in rows)
        - generated,
    }


def success_rates(counters: Mapping[str, int]) -> dict[str, float]:
    """Shares of attempts that succeeded; a rate with nothing to count is left out."""
    rates = {}
    for name, wins, tries in (
        ("success_first", "first_attempt_successes", "first_attempts"),
        ("success_second", "second_attempt_successes", "second_attempts"),
        ("success_episode", "episode_successes", "episodes"),
    ):
        if counters.get(tries, 0):
            rates[name] = counters[wins] / counters[tries]
    return rates
