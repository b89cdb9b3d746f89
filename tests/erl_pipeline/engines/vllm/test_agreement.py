import math

import numpy as np
import pytest

from erl_pipeline.engines.interface import Probe
from erl_pipeline.engines.vllm.client import ProbeAnswer
from erl_pipeline.engines.vllm.weight_sync import LogprobDifference, compare, compare_hot, tolerance

NONE = np.zeros((0, 0))


def test_log_probabilities_of_the_prompts_are_left_out() -> None:
    probe = Probe(token_ids=((1, 2, 3, 4),), logprobs=((-1.0, -2.0),), dtype="float32", hot_logprobs=NONE)
    assert compare(probe, [[-9.0, -1.0, -2.25]]) == LogprobDifference(mean=0.125, maximum=0.25)


def test_difference_is_mean_and_maximum_of_absolute_distances() -> None:
    probe = Probe(((1, 2, 3), (4, 5, 6)), ((-1.0, -2.0), (-3.0, -4.0)), "float32", NONE)
    difference = compare(probe, [[-1.0, -2.5], [-2.0, -4.5]])
    assert difference == LogprobDifference(mean=(0.0 + 0.5 + 1.0 + 0.5) / 4, maximum=1.0)


def test_of_several_copies_the_worst_counts_also_where_it_is_no_number() -> None:
    first, second = LogprobDifference(0.1, 0.9), LogprobDifference(0.2, 0.3)
    assert first.or_worse(second) == LogprobDifference(0.2, 0.9)
    undefined = LogprobDifference(math.nan, math.nan)
    for worst in (first.or_worse(undefined), undefined.or_worse(first)):
        assert not worst.within(LogprobDifference(9.0, 9.0))


def test_what_a_server_drew_is_looked_up_in_the_trainers_distribution() -> None:
    hot = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    probe = Probe(((1, 2), (3, 4)), ((-1.0,), (-1.0,)), "float32", hot)
    answers = [ProbeAnswer([], 1, math.log(0.25)), ProbeAnswer([], 2, math.log(0.4))]
    difference = compare_hot(probe, answers)
    assert difference.mean == pytest.approx(math.log(2) / 2)
    assert difference.maximum == pytest.approx(math.log(2))


def test_both_bounds_must_hold_and_nothing_is_near_to_no_number() -> None:
    bound = LogprobDifference(mean=0.1, maximum=0.5)
    assert LogprobDifference(mean=0.1, maximum=0.5).within(bound)
    assert not LogprobDifference(mean=0.11, maximum=0.5).within(bound)
    assert not LogprobDifference(mean=0.1, maximum=0.51).within(bound)
    assert not LogprobDifference(mean=math.nan, maximum=math.nan).within(bound)


def test_the_coarser_number_type_sets_the_tolerance() -> None:
    assert tolerance("float32", "bfloat16") == tolerance("bfloat16", "float32")
    assert tolerance("float32", "bfloat16").maximum > tolerance("float32", "float32").maximum
