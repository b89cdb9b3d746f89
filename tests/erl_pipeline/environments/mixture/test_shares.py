from __future__ import annotations

from erl_pipeline.environments.mixture.tasks import turns


def test_turns_are_in_proportion_at_each_length() -> None:
    # Turns of a come at 1/6, 3/6, 5/6, of b at 1/2; at 1/2 it is the first part's turn first.
    assert turns({"a": 3.0, "b": 1.0}, 8) == ["a", "a", "b", "a", "a", "a", "b", "a"]
    assert turns({"a": 1.0, "b": 1.0}, 3) == ["a", "b", "a"]


def test_a_smaller_count_gives_the_beginning() -> None:
    weights = {"a": 0.2, "b": 0.5, "c": 0.3}
    assert turns(weights, 40)[:17] == turns(weights, 17)
    assert turns(weights, 40).count("b") == 20
