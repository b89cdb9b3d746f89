from __future__ import annotations

import polars as pl

from command_line.memory.run import credit_line, effect_lines, interval, roles_in_words
from erl_pipeline.evaluation.memory_effect import MemoryArm, MemoryEffect
from erl_pipeline.statistics import Estimate, MeanEstimate

GUIDED = MemoryArm(Estimate(0.5, 0.4, 0.6, tasks=10, attempts=40), MeanEstimate(0.1, -0.05, 0.25, 10, 40))
FREE = MemoryArm(Estimate(0.25, 0.2, 0.3, tasks=10, attempts=40), None)
EFFECT = MeanEstimate(0.25, 0.125, 0.375, tasks=9, count=36)


def test_both_sides_and_what_lies_between_them() -> None:
    assert effect_lines(MemoryEffect(GUIDED, FREE, EFFECT)) == [
        "attempts after a reflection that could see memory: 20 of 40 succeeded, 0.500 (0.400 to 0.600); over "
        "other first attempts at the same tasks +0.100 (-0.050 to +0.250)",
        "attempts after a reflection without memory: 10 of 40 succeeded, 0.250 (0.200 to 0.300)",
        "effect of memory on reward: +0.250 (+0.125 to +0.375), 36 compared with their groups, of 9 tasks; "
        "the seed drew which reflections see memory, so the effect is causal",
    ]


def test_what_gets_memory_is_named_by_its_role() -> None:
    searching = roles_in_words(pl.DataFrame({"role": ["first_attempt"]}))
    lines = effect_lines(MemoryEffect(GUIDED, FREE, EFFECT), searching)
    assert lines[0].startswith("first attempts that could see memory: 20 of 40")
    assert lines[1].startswith("first attempts without memory: 10 of 40")
    assert "the seed drew which first attempts see memory" in lines[2]
    assert roles_in_words(pl.DataFrame({"role": ["reflection"] * 2})) == "reflections"


def test_where_there_is_nothing_to_compare_with_it_says_so() -> None:
    assert effect_lines(MemoryEffect(GUIDED, None, None))[-1].startswith("memory was withheld from none")
    assert effect_lines(MemoryEffect(GUIDED, FREE, None))[-1].startswith("no group has both")
    assert effect_lines(MemoryEffect(None, None, None)) == ["no attempt followed a search of the memory"]
    assert credit_line(None).startswith("credit: nothing to compare with")
    assert interval(MeanEstimate(0.5, None, None, 1, 3)) == "+0.500 (one task: no interval)"
