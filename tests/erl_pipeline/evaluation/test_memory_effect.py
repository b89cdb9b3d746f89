"""The effect of memory, worked out by hand on a few searches."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from erl_pipeline.evaluation.memory_effect import entry_credits, memory_effect


def search(
    task: str, subgroup: str | None, reward: float, base: float | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "role": "reflection",
        "task_id": task,
        "iteration": 2,
        "group_id": f"2/{task}",
        "revision_index": 1,
        "subgroup": subgroup,
        "memory_version": "" if subgroup == "free" else "version-1",
        "memory_entry_ids": [] if subgroup == "free" else ["m-1"],
        "reward": reward,
        "success": reward >= 1.0,
        "base": base,
        **more,
    }


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(
        list(rows), schema_overrides={"memory_entry_ids": pl.List(pl.String), "base": pl.Float64}
    )


def test_guided_ones_are_compared_with_free_ones_of_their_group() -> None:
    """lake: 1 and 1 against a mean of 1/2: +1/2 twice. pond: 0 against 0: 0. sea has no free attempt. Mean
    1/3; with the sums 1 and 0 of two tasks of 2 and 1 observations the squares are (1 - 2/3)^2 and (1/3)^2,
    and the half width is t(1) sqrt(2 / 1 * 2/9) / 3 with t(1) = 12.706."""
    effect = memory_effect(
        frame(
            search("lake", "guided", 1.0, 0.25),
            search("lake", "guided", 1.0, 0.25),
            search("lake", "free", 1.0, 0.5),
            search("lake", "free", 0.0, 0.5),
            search("pond", "guided", 0.0, 0.0),
            search("pond", "free", 0.0),
            search("sea", "guided", 1.0, 1.0),
        )
    )
    assert effect.effect is not None
    assert (effect.effect.value, effect.effect.tasks, effect.effect.count) == pytest.approx((1 / 3, 2, 3))
    half_width = 12.7062 * (2 * 2 / 9) ** 0.5 / 3
    assert effect.effect.high == pytest.approx(1 / 3 + half_width, abs=1e-4)
    assert effect.guided is not None
    assert effect.free is not None
    assert (effect.guided.success.attempts, effect.guided.success.value) == (4, 0.75)
    assert (effect.free.success.attempts, effect.free.success.value) == pytest.approx((3, 1 / 3))
    # Gains over other first attempts at the same task: .75, .75, 0, 0 and .5, -.5; pond has no other first
    # attempt.
    assert effect.guided.gain is not None
    assert effect.free.gain is not None
    assert effect.guided.gain.value == pytest.approx(0.375)
    assert (effect.free.gain.value, effect.free.gain.count) == (0.0, 2)


def test_the_credit_of_an_entry_is_shrunk_and_so_is_its_interval() -> None:
    """Two observations of +1 at one task: 2 / (2 + 8) = .2. The squares are (2 - .4)^2 for the task and 8
    times .2^2, so the half width is t(8) sqrt(9 / 8 * 2.88) / 10 with t(8) = 2.306."""
    credits = entry_credits(
        frame(
            search("lake", "guided", 1.0),
            search("lake", "guided", 1.0),
            search("lake", "free", 0.0),
            search("pond", "guided", 1.0, memory_entry_ids=["m-2"]),
        )
    )
    assert list(credits) == ["m-1"]
    credit = credits["m-1"]
    assert (credit.value, credit.tasks, credit.count) == pytest.approx((0.2, 1, 2))
    assert credit.high == pytest.approx(0.2 + 2.30600 * (9 / 8 * 2.88) ** 0.5 / 10, abs=1e-4)


def test_without_a_draw_there_is_no_effect_but_a_gain() -> None:
    effect = memory_effect(
        frame(search("lake", None, 1.0, 0.5), search("lake", None, 0.0, memory_version=""))
    )
    assert effect.guided is not None
    assert (effect.guided.success.attempts, effect.free, effect.effect) == (1, None, None)
    assert effect.guided.gain is not None
    assert (effect.guided.gain.value, effect.guided.gain.low) == (0.5, None)


def test_nothing_to_look_at() -> None:
    effect = memory_effect(frame(search("lake", "guided", 1.0)).clear())
    assert (effect.guided, effect.free, effect.effect) == (None, None, None)
