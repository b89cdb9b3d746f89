import math

import pytest

from erl_pipeline.generation.vllm.probe import Difference, Probe, compare, make_probe, tolerance
from tests.erl_pipeline.generation.vllm.small_policies import logprobs_of, untied_gpt2


def test_a_probe_holds_the_log_probability_of_each_next_token() -> None:
    model = untied_gpt2()
    probe = make_probe(model)
    first, *rest = probe.token_ids[3]
    assert probe.logprobs[3] == pytest.approx(logprobs_of(model, [first], rest), abs=1e-5)
    assert probe.dtype == "float32"


def test_difference_is_mean_and_maximum_of_absolute_distances() -> None:
    probe = Probe(token_ids=((1, 2, 3), (4, 5, 6)), logprobs=((-1.0, -2.0), (-3.0, -4.0)), dtype="float32")
    difference = compare(probe, [[-1.0, -2.5], [-2.0, -4.5]])
    assert difference == Difference(mean=(0.0 + 0.5 + 1.0 + 0.5) / 4, maximum=1.0)


def test_both_bounds_must_hold_and_nothing_is_near_to_no_number() -> None:
    bound = Difference(mean=0.1, maximum=0.5)
    assert Difference(mean=0.1, maximum=0.5).within(bound)
    assert not Difference(mean=0.11, maximum=0.5).within(bound)
    assert not Difference(mean=0.1, maximum=0.51).within(bound)
    assert not Difference(mean=math.nan, maximum=math.nan).within(bound)


def test_the_coarser_number_type_sets_the_tolerance() -> None:
    assert tolerance("float32", "bfloat16") == tolerance("bfloat16", "float32")
    assert tolerance("float32", "bfloat16").maximum > tolerance("float32", "float32").maximum
