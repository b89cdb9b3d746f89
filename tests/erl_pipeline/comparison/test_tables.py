from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from erl_pipeline.comparison.arms import Arm
from erl_pipeline.comparison.design import Design
from erl_pipeline.comparison.document import charts, document, page
from erl_pipeline.comparison.measures import Budgets, across_seeds, measure
from erl_pipeline.comparison.result import ArmResult, Failure, Result, SplitHistory, arm_differences
from erl_pipeline.comparison.tables import markdown, rate_text, tables, warnings
from storage.runs.split_openings import Opening, SplitUse
from tests.erl_pipeline.comparison.curves import curve


def result(tokens_of_b: int, *failures: Failure, seeds: int = 2) -> Result:
    """Two arms of two or three seeds each; `b` generates this many tokens in an iteration, `a` 100."""
    budgets = Budgets(generated_tokens=200, policy_steps=8)
    curves = {
        "a": {0: curve(100, 0.2, 0.4, 0.8), 1: curve(100, 0.2, 0.6, 0.8), 2: curve(100, 0.2, 0.5, 0.8)},
        "b": {
            0: curve(tokens_of_b, 0.2, 0.4, 0.4, 0.4, 0.4),
            1: curve(tokens_of_b, 0.2, 0.2, 0.4, 0.4, 0.4),
            2: curve(tokens_of_b, 0.2, 0.3, 0.4, 0.4, 0.4),
        },
    }
    curves = {arm: {seed: by_seed[seed] for seed in range(seeds)} for arm, by_seed in curves.items()}
    measures = {
        arm: {seed: measure(each, budgets) for seed, each in by_seed.items()}
        for arm, by_seed in curves.items()
    }
    return Result(
        design=Design("lake", "lake.yaml", (Arm("a"), Arm("b")), "a", (0, 1), 2, ()),
        budgets=budgets,
        test_tasks=10,
        arms={arm: ArmResult(curves[arm], measures[arm], {}) for arm in curves},
        differences=arm_differences(measures, "a"),
        failures=failures,
    )


def test_success_has_means_and_intervals_over_seeds() -> None:
    success = tables(result(100))[0]
    # Areas by tokens: a has (0.3 + 0.6) / 2 and (0.4 + 0.7) / 2, b (0.3 + 0.4) / 2 and (0.2 + 0.3) / 2.
    # Half widths 12.706 * 0.05: more than rates can differ.
    assert success.rows[0]["area by tokens"] == "0.500 (too few seeds)"
    assert success.rows[1]["area by tokens"] == "0.300 (too few seeds)"
    assert success.rows[1]["success at the steps"] == "0.400 (too few seeds)"


def test_an_interval_of_rates_ends_at_0_and_1() -> None:
    # Mean 0.2, sd 0.2; half width 4.303 * 0.2 / sqrt(3) = 0.497.
    assert rate_text(across_seeds([0.0, 0.2, 0.4])) == "0.200 (0.000 to 0.697)"
    assert rate_text(across_seeds([0.6, 0.8, 1.0])) == "0.800 (0.303 to 1.000)"
    assert rate_text(across_seeds([0.6])) == "0.600"


def test_each_table_of_differences_says_how_many_comparisons_there_are() -> None:
    area, success = tables(result(100, seeds=3))[1:3]
    assert area.title == "Differences: area by tokens"
    # +.1, +.3 and +.2: mean .2, t = sqrt(12), p = 1 - t / sqrt(t^2 + 2), half width 4.3027 * .1 / sqrt(3).
    # There is one more p value in all tables, that of the area by steps, so this one is multiplied by 2.
    assert area.rows == [
        {
            "difference": "a - b",
            "seeds": "3",
            "mean": "+0.200",
            "95 % interval": "-0.048 to 0.448",
            "p": "0.0742",
            "p, Holm": "0.0742",
            "p, Holm over all tables": "0.1484",
        }
    ]
    # Success differs by .4 in all seeds.
    assert list(success.rows[0].values()) == ["a - b", "3", "+0.400", "", "", "", ""]
    assert list(tables(result(100))[1].rows[0].values()) == ["a - b", "2", "+0.200", "", "", "", ""]
    assert area.note.startswith("1 comparison in this table, 4 in all tables of differences.")


def test_arms_that_do_not_spend_alike_are_told_of() -> None:
    assert warnings(result(100)) == warnings(result(95)) == []
    # 200 tokens in four iterations of four steps, where a needs two.
    assert warnings(result(50)) == [
        "At the token budget b has made 16 policy steps and a 8, so that it generates 0.50 times the "
        "tokens for a step. Give it 2.00 times the episodes (rollouts.group_size) to have both equal."
    ]


def test_runs_that_were_ended_early_are_told_of() -> None:
    [said] = warnings(replace(result(100), ended_early=("lake.b.seed1",)))
    assert said.startswith("lake.b.seed1 generates so little that it was ended before the token budget; ")


def test_attempts_that_were_not_scored_are_told_of() -> None:
    compared = result(100)
    arm = compared.arms["b"]
    points = [replace(point, left_out=point.iteration) for point in arm.curves[1]]
    curves = {**arm.curves, 1: points}
    compared = replace(compared, arms={**compared.arms, "b": replace(arm, curves=curves)})
    assert warnings(compared) == [
        "b, seed 1: up to 4 of 10 test attempts of an evaluation were not scored, and are left out of its "
        "success."
    ]


def test_steps_of_an_extractor_have_a_column_only_where_one_is_trained() -> None:
    compared = result(100)
    assert "extractor steps" not in tables(compared)[-1].rows[0]
    arm = compared.arms["b"]
    trained = {**arm.measures, 0: replace(arm.measures[0], extractor_steps_at_tokens=6.0)}
    compared = replace(compared, arms={**compared.arms, "b": replace(arm, measures=trained)})
    costs = tables(compared)[-1]
    assert costs.title == "Costs"
    # The mean of 6 and 0.
    assert [(row["policy steps"], row["extractor steps"]) for row in costs.rows] == [("8", "0"), ("8", "3")]


def test_failed_runs_have_a_table_of_their_own() -> None:
    failure = Failure("lake.c.seed0", "c", 0, "no tasks")
    last = tables(result(100, failure))[-1]
    assert last.rows == [{"failed run": "lake.c.seed0", "reason": "no tasks"}]
    assert markdown(replace(last, note="")) == (
        "## Failures\n\n| failed run | reason |\n|---|---|\n| lake.c.seed0 | no tasks |"
    )


def test_intervals_over_seeds_and_tasks_are_of_arms_and_differences_with_three_seeds() -> None:
    compared = result(100)
    assert "Intervals over seeds and test tasks" not in [table.title for table in tables(compared)]
    a = compared.arms["a"]
    three = dict.fromkeys(range(3), a.measures[0])
    (against_b,) = compared.differences["area_by_tokens"]
    compared = replace(
        compared,
        arms={"a": replace(a, measures=three, over_seeds_and_tasks={"area_by_tokens": (0.25, 0.5)})},
        differences={
            name: [replace(against_b, seeds=(0, 1, 2), over_seeds_and_tasks=(-0.1, 0.3))]
            for name in compared.differences
        },
    )
    shown = {table.title: table for table in tables(compared)}["Intervals over seeds and test tasks"]
    assert [list(row.values())[:3] for row in shown.rows] == [
        ["a", "0.250 to 0.500", ""],
        ["a - b", "-0.100 to 0.300", "-0.100 to 0.300"],
    ]


def test_a_page_on_a_split_that_others_opened_begins_with_it() -> None:
    use = SplitUse(comparison="lake", settings_digest="b", seeds=(0,), test_tasks=("t",), tasks=("1", "2"))
    earlier = Opening(
        **{**use.model_dump(), "settings_digest": "a", "test_tasks": ("u",), "tasks": ("2", "3")},
        code_version="2dabdf0",
        opened=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    )
    first, heading = page(replace(result(100), split=SplitHistory(use, (earlier,)))).splitlines()[:3:2]
    assert first == (
        "**This test split was opened before: 1 other comparison had seen 1 of its 2 tasks, as they are or "
        "turned (lake, 2026-01-02 03:04 UTC, code 2dabdf0). Settings may have been chosen after a look at "
        "them.**"
    )
    assert heading == "# Comparison lake"
    # An earlier version named single tasks otherwise; the artifact tells that they are the same.
    same = earlier.model_copy(update={"test_tasks": ("t",), "tasks": ("x",)})
    assert "had seen 2 of its 2 tasks" in page(replace(result(100), split=SplitHistory(use, (same,))))
    assert page(replace(result(100), split=SplitHistory(use, ()))).startswith("# Comparison lake")
    own = earlier.model_copy(update={"settings_digest": "b", "seeds": (3, 4)})
    assert page(replace(result(100), split=SplitHistory(use, (own,)))).startswith(
        "**This comparison had been made with other seeds before (seeds 3, 4, 2026-01-02 03:04 UTC, code "
        "2dabdf0). Seeds may have been added or left out after a look at its results.**"
    )
    other = earlier.model_copy(update={"settings_digest": "b", "seeds": (0,), "baseline": "rlvr"})
    assert page(replace(result(100), split=SplitHistory(use, (other,)))).startswith(
        "**This comparison had been made with another baseline before (rlvr, 2026-01-02 03:04 UTC, code "
        "2dabdf0). The baseline may have been chosen after a look at its results, and p values are corrected "
        "for the differences from this one alone.**"
    )
    edited = earlier.model_copy(update={"settings_digest": "b", "code_digest": "older"})
    assert page(replace(result(100), split=SplitHistory(use, (edited,)))).startswith(
        "**This comparison had been made with other code before (2026-01-02 03:04 UTC, code 2dabdf0). The "
        "code may have been changed after a look at its results.**"
    )


def test_costs_have_prompt_tokens_and_those_that_a_teacher_scored() -> None:
    compared = result(100)
    assert "teacher tokens" not in tables(compared)[-1].rows[0]
    arm = compared.arms["b"]
    figures = {
        seed: replace(each, prompt_tokens_at_tokens=1200.0, teacher_tokens_at_tokens=40.0 * seed)
        for seed, each in arm.measures.items()
    }
    costs = tables(replace(compared, arms={**compared.arms, "b": replace(arm, measures=figures)}))[-1]
    assert [(row["prompt tokens"], row["teacher tokens"]) for row in costs.rows] == [
        ("0", "0"),
        ("1,200", "20"),
    ]


def test_steps_are_compared_with_the_first_arm_that_takes_any() -> None:
    compared = result(50)
    evolved = {seed: curve(100, 0.2, 0.4, 0.4, steps_per_iteration=0) for seed in (0, 1)}
    measures = {seed: measure(each, compared.budgets) for seed, each in evolved.items()}
    arms = {"c": ArmResult(evolved, measures, {}), **compared.arms}
    [said] = warnings(replace(compared, arms=arms, design=replace(compared.design, baseline="c")))
    assert said.startswith("At the token budget b has made 16 policy steps and a 8, ")


def test_an_arm_that_takes_no_steps_has_no_figures_and_no_line_by_steps() -> None:
    compared = result(100)
    evolved = {seed: curve(100, 0.2, 0.4, 0.4, steps_per_iteration=0) for seed in (0, 1)}
    arms = {
        "a": compared.arms["a"],
        "b": ArmResult(evolved, {seed: measure(evolved[seed], compared.budgets) for seed in evolved}, {}),
    }
    found = arm_differences({arm: each.measures for arm, each in arms.items()}, "a")
    compared = replace(compared, arms=arms, differences=found)
    shown = {table.title: table for table in tables(compared)}
    row = shown["Success on the test tasks"].rows[1]
    assert (row["success at the tokens"], row["success at the steps"]) == ("0.400 (too few seeds)", "")
    assert (shown["Costs"].rows[1]["policy steps"], shown["Costs"].rows[1]["tokens at the steps"]) == (
        "0",
        "",
    )
    assert [title for title in shown if title.startswith("Differences")] == [
        "Differences: area by tokens",
        "Differences: success at the tokens",
    ]
    drawn = charts(compared)
    assert [line.label for line in drawn["success_by_tokens"].series] == ["a", "b"]
    assert [line.label for line in drawn["success_by_steps"].series] == ["a"]
    assert document(compared)["arms"]["b"]["summary"]["area_by_steps"] is None
    assert "| b | 0 | 0.200 | 0.350 | 0.400 |  |  |" in page(compared)
