"""The tables of a comparison, as text for both terminals and Markdown files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from erl_pipeline.comparison.bootstrap import Interval
from erl_pipeline.comparison.measures import (
    MEASURES,
    SEEDS_FOR_INTERVAL,
    Measure,
    RunMeasures,
    SeedSummary,
    across_seeds,
)
from erl_pipeline.comparison.opened_split import opened_sentence
from erl_pipeline.comparison.result import ArmResult, Result
from storage.texts import counted

_EXTRACTOR_STEPS, _TEACHER_TOKENS = "extractor steps", "teacher tokens"
_COSTS: tuple[tuple[str, str], ...] = (
    ("iterations", "iterations_at_tokens"),
    ("episodes", "episodes_at_tokens"),
    ("policy steps", "policy_steps_at_tokens"),
    (_EXTRACTOR_STEPS, "extractor_steps_at_tokens"),
    ("prompt tokens", "prompt_tokens_at_tokens"),
    (_TEACHER_TOKENS, "teacher_tokens_at_tokens"),
    ("seconds", "seconds_at_tokens"),
    ("tokens at the steps", "generated_tokens_at_steps"),
)
UNEQUAL = 0.1
"""There is a warning if the steps of two arms at the token budget differ by more than this share."""


@dataclass(frozen=True)
class ShownTable:
    """Rows with the same headings; the first column is text. `note` says what the numbers are."""

    title: str
    rows: Sequence[dict[str, str]]
    note: str = ""


def tables(result: Result) -> list[ShownTable]:
    """All tables; those without rows are left out."""
    shown = [
        _success(result),
        *_differences(result),
        _over_seeds_and_tasks(result),
        _trials(result),
        _training(result),
        _costs(result),
        _failures(result),
    ]
    return [table for table in shown if table.rows]


def seed_table(result: Result) -> ShownTable:
    """The figures of every single run."""
    rows = [
        {"arm": arm, "seed": str(seed)}
        | {label: _number(figures, name, ".3f") for name, label in (("start", "start"), *MEASURES.items())}
        | {label: _number(figures, name, ",.0f") for label, name in _costs_shown(result)}
        for arm, each in result.arms.items()
        for seed, figures in each.measures.items()
    ]
    return ShownTable("Every run", rows)


def markdown(table: ShownTable) -> str:
    """The table as Markdown, with title and note."""
    headings = list(table.rows[0])
    lines = [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
        *("| " + " | ".join(row.values()) + " |" for row in table.rows),
    ]
    return "\n\n".join(part for part in (f"## {table.title}", "\n".join(lines), table.note) if part)


def preface(result: Result) -> str:
    """A paragraph that says what was compared, and on what."""
    design, budgets = result.design, result.budgets
    by_steps = f" and at {budgets.policy_steps:,} policy steps" if budgets.policy_steps else ""
    return (
        f"{counted(len(design.arms), 'arm')} with {counted(len(design.seeds), 'seed')} each, "
        f"{counted(design.iterations, 'iteration')} of "
        f"{design.base} and more where an arm draws fewer tasks in each or generates fewer tokens. Success "
        f"is that of one greedy first attempt at each of {result.test_tasks} test tasks, which training has "
        "not seen; the result is fair if no setting was chosen by it either. Arms are read off at "
        f"{budgets.generated_tokens:,} generated tokens{by_steps}. Intervals are 95 % t intervals of the "
        "mean over seeds, where no other is named."
    )


def split_warning(result: Result) -> str:
    """The sentence with which a result begins whose test tasks others had opened before; else empty."""
    return "" if result.split is None else opened_sentence(result.split.before, result.split.use)


def warnings(result: Result) -> list[str]:
    """Sentences on what makes the comparison less fair than it should be."""
    early = [
        f"{run} generates so little that it was ended before the token budget; it counts as if its last "
        "success stayed."
        for run in result.ended_early
    ]
    left_out = [
        f"{arm}, seed {seed}: up to {most} of {result.test_tasks} test attempts of an evaluation were not "
        "scored, and are left out of its success."
        for arm, each in result.arms.items()
        for seed, curve in each.curves.items()
        if (most := max(point.left_out for point in curve))
    ]
    said = [*early, *left_out]
    means = {
        arm: fmean(figures.policy_steps_at_tokens for figures in each.measures.values())
        for arm, each in result.arms.items()
    }
    # A baseline may take none, such as one that changes only its prompt.
    taking_steps = [arm for arm in (result.design.baseline, *means) if means.get(arm)]
    if not taking_steps:
        return said
    reference = means[taking_steps[0]]
    return said + [
        f"At the token budget {arm} has made {steps:,.0f} policy steps and {taking_steps[0]} "
        f"{reference:,.0f}, so that it generates {reference / steps:.2f} times the tokens for a step. "
        f"Give it {steps / reference:.2f} times the episodes (rollouts.group_size) to have both equal."
        for arm, steps in means.items()
        if steps and abs(steps / reference - 1) > UNEQUAL
    ]


def _success(result: Result) -> ShownTable:
    rows = []
    for arm, each in result.arms.items():
        row = {"arm": arm, "seeds": str(len(each.measures))}
        for name, label in (("start", "start"), *MEASURES.items()):
            summary = over_seeds(each, name)
            row[label] = "" if summary is None else rate_text(summary)
        rows.append(row)
    note = (
        "Area is the mean height of the curve up to the budget: the sooner a success, the larger the area. "
        "Intervals end at 0 and 1; fewer than three seeds give none. An arm that takes no optimizer steps "
        "has no figures by steps, and none has any where a run of another arm has taken none."
    )
    return ShownTable("Success on the test tasks", rows, note)


def _differences(result: Result) -> list[ShownTable]:
    shown = []
    for name, label in MEASURES.items():
        found = result.differences.get(name, [])
        rows = [
            {
                "difference": f"{result.design.baseline} - {each.arm}",
                "seeds": str(len(each.seeds)),
                "mean": f"{each.difference.summary.mean:+.3f}",
                "95 % interval": _ends(each.difference.summary),
                "p": _p(each.difference.p_value),
                "p, Holm": _p(each.p_in_table),
                "p, Holm over all tables": _p(each.p_in_all),
            }
            for each in found
        ]
        note = (
            f"{counted(len(rows), 'comparison')} in this table, {result.comparisons} in all tables of "
            "differences. Seed by seed, two-sided t test; intervals are not corrected. Fewer than three "
            "seeds, or differences that are all equal, have no spread to tell anything by."
        )
        shown.append(ShownTable(f"Differences: {label}", rows, note))
    return shown


def _over_seeds_and_tasks(result: Result) -> ShownTable:
    """Intervals by the bootstrap; as in other tables, fewer than three seeds give none."""
    rows = [
        _intervals(arm, each.over_seeds_and_tasks)
        for arm, each in result.arms.items()
        if len(each.measures) >= SEEDS_FOR_INTERVAL
    ]
    of_arms: dict[str, dict[Measure, Interval | None]] = {}
    for name in MEASURES:
        for each in result.differences.get(name, []):
            if len(each.seeds) >= SEEDS_FOR_INTERVAL:
                of_arms.setdefault(each.arm, {})[name] = each.over_seeds_and_tasks
    rows += [_intervals(f"{result.design.baseline} - {arm}", found) for arm, found in of_arms.items()]
    note = (
        "95 % intervals of the means above by the bootstrap: seeds are drawn with replacement, and test "
        "tasks, for all drawn seeds together where seeds have the same ones. They include that other tasks "
        "might have been drawn, which t intervals over seeds leave out. With few seeds a bootstrap is too "
        "narrow: read the wider of the two."
    )
    return ShownTable("Intervals over seeds and test tasks", rows, note)


def _intervals(who: str, found: Mapping[Measure, Interval | None]) -> dict[str, str]:
    texts = {name: "" if each is None else f"{each[0]:.3f} to {each[1]:.3f}" for name, each in found.items()}
    return {"arm or difference": who} | {label: texts.get(name, "") for name, label in MEASURES.items()}


def _trials(result: Result) -> ShownTable:
    search = result.search
    if search is None:
        return ShownTable("Search", [])
    rows = [
        {
            "arm": each.arm,
            "settings": ", ".join(each.settings),
            MEASURES[search.measure]: f"{each.score:.3f}",
            "seeds": str(len(each.scores)),
            "tokens": f"{each.generated_tokens:,}",
            "ended early": "yes" if each.ended_early else "",
            "chosen": "yes" if each.chosen else "",
        }
        for each in search.trials
    ]
    spent = ", ".join(f"{arm} {tokens:,}" for arm, tokens in search.tokens.items())
    note = (
        "Trials on held-out tasks, before the test, with seeds that no compared run has. All are read off at "
        f"{search.read_off_at:,} tokens; one that generates so little that it was ended before counts as if "
        f"its last success stayed. Tokens generated by them: {spent}; no budget of the comparison includes "
        "them."
    )
    return ShownTable("Search", rows, note)


def _training(result: Result) -> ShownTable:
    rows = [
        {
            "arm": arm,
            "number": number.label,
            "first third": _with_interval(number.summary.first),
            "last third": _with_interval(number.summary.last),
        }
        for arm, each in result.arms.items()
        for number in each.training.values()
    ]
    note = (
        "Means over the first and the last third of an arm's iterations, before those that equal tokens add. "
        "Retries are made only after a failure, so that their success says little; their gain over other "
        "first attempts at the same task does."
    )
    return ShownTable("In training", rows, note)


def _costs(result: Result) -> ShownTable:
    rows = []
    for arm, each in result.arms.items():
        row = {"arm": arm}
        for label, name in _costs_shown(result):
            summary = over_seeds(each, name)
            row[label] = "" if summary is None else f"{summary.mean:,.0f}"
        rows.append(row)
    budgets, last = result.budgets, ""
    if budgets.policy_steps:
        last = f"; the last column is what had been generated at {budgets.policy_steps:,} policy steps"
    note = (
        f"Means over seeds, at {budgets.generated_tokens:,} generated tokens{last}. Each prompt counts once "
        "in prompt tokens. Seconds are those of the stages, without evaluations; they include whatever else "
        "the machine did meanwhile."
    )
    return ShownTable("Costs", rows, note)


def _costs_shown(result: Result) -> list[tuple[str, str]]:
    """Labels and measures of the costs; those that only some methods have where an arm has any."""
    figures = [each for arm in result.arms.values() for each in arm.measures.values()]
    return [
        (label, name)
        for label, name in _COSTS
        if label not in (_EXTRACTOR_STEPS, _TEACHER_TOKENS) or any(getattr(each, name) for each in figures)
    ]


def _failures(result: Result) -> ShownTable:
    rows = [{"failed run": each.run, "reason": each.message} for each in result.failures]
    return ShownTable("Failures", rows, "Figures above are of the other seeds.")


def over_seeds(arm: ArmResult, name: str) -> SeedSummary | None:
    """A figure of `RunMeasures` over an arm's seeds; None for figures by steps of an arm that takes none."""
    known = [value for figures in arm.measures.values() if (value := getattr(figures, name)) is not None]
    return across_seeds(known) if known else None


def _number(figures: RunMeasures, name: str, form: str) -> str:
    value = getattr(figures, name)
    return "" if value is None else format(value, form)


def _with_interval(summary: SeedSummary | None) -> str:
    if summary is None:
        return ""
    ends = _ends(summary)
    return f"{summary.mean:.3f} ({ends})" if ends else f"{summary.mean:.3f}"


def rate_text(summary: SeedSummary) -> str:
    """A mean of rates with the part of its interval that rates can have. That of two seeds covers nearly all
    of it, and would say nothing."""
    if summary.low is None or summary.high is None:
        return f"{summary.mean:.3f}"
    if summary.seeds < SEEDS_FOR_INTERVAL:
        return f"{summary.mean:.3f} (too few seeds)"
    return f"{summary.mean:.3f} ({max(0.0, summary.low):.3f} to {min(1.0, summary.high):.3f})"


def _ends(summary: SeedSummary) -> str:
    return f"{summary.low:.3f} to {summary.high:.3f}" if summary.has_spread else ""


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"
