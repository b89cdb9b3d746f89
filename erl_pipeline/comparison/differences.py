"""Differences between the baseline and each arm, seed by seed, corrected for the number of differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from erl_pipeline.comparison.measures import MEASURES, RunMeasures
from erl_pipeline.evaluation.seeds import SeedDifference, holm, seed_difference


@dataclass(frozen=True)
class ArmDifference:
    """The baseline less an arm in one measure, over the seeds that both have.

    `p_in_table` is the p value corrected for all arms in this measure, `p_in_all` for all arms in all
    measures; None with one seed.
    """

    arm: str
    measure: str
    seeds: tuple[int, ...]
    difference: SeedDifference
    p_in_table: float | None
    p_in_all: float | None


def arm_differences(
    measures: Mapping[str, Mapping[int, RunMeasures]], baseline: str
) -> dict[str, list[ArmDifference]]:
    """Measure -> the baseline less each other arm. `measures` maps arm -> seed -> figures.

    Arms that share no seed with the baseline are left out.
    """
    pairs: list[tuple[str, str, tuple[int, ...], SeedDifference]] = []
    ours = measures.get(baseline, {})
    for name in MEASURES:
        for arm, theirs in measures.items():
            seeds = tuple(seed for seed in ours if seed in theirs)
            if arm == baseline or not seeds:
                continue
            figures = [[getattr(each[seed], name) for seed in seeds] for each in (ours, theirs)]
            pairs.append((name, arm, seeds, seed_difference(*figures)))
    everywhere = _corrected([pair[3] for pair in pairs])
    found: dict[str, list[ArmDifference]] = {}
    for name in MEASURES:
        of_measure = [number for number, pair in enumerate(pairs) if pair[0] == name]
        in_table = _corrected([pairs[number][3] for number in of_measure])
        found[name] = [
            ArmDifference(arm, name, seeds, difference, p_in_table, everywhere[number])
            for number, p_in_table in zip(of_measure, in_table, strict=True)
            for _, arm, seeds, difference in [pairs[number]]
        ]
    return found


def _corrected(differences: list[SeedDifference]) -> list[float | None]:
    """Holm's p values; None for differences without a p value."""
    adjusted = iter(holm([each.p_value for each in differences if each.p_value is not None]))
    return [None if each.p_value is None else next(adjusted) for each in differences]
